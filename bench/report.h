// What every benchmark prints, and its JSON.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::bench {

// What bounds a case: reads and writes of memory, arithmetic, or the way to another rank (for ranks
// on CPUs a copy by memcpy).
enum class Bound { kUnknown, kMemory, kCompute, kLink };

// The time that a machine could not beat, and why.
struct Limit {
  double seconds = 0.0;
  Bound bound = Bound::kUnknown;
};
// max(bytes / bandwidth, flops / peak): bytes, bytes per second, operations, operations per second.
// A peak of 0 is unknown.
Limit Roofline(double bytes, double bandwidth, double flops, double peak);
Limit LinkLimit(double bytes, double bandwidth);

// One case.
struct Result {
  std::string name;      // of the operation: "linear"
  std::string shape;     // "bfloat16 1 x 2048 x 2048"
  double seconds = 0.0;  // median of one call
  double flops = 0.0;    // operations of a call, two to a multiply-add; 0: none to speak of
  double bytes = 0.0;    // that a call has to move; 0: none to speak of
  Limit limit;
  // Further figures, the name with its unit: {"error", 1.7e-3}, {"route us", 43.2}.
  std::vector<std::pair<std::string, double>> more;
};

// Prints a line for each case as soon as it is there, and keeps all for the JSON. One thread at a
// time uses it; ranks but the first leave it alone but for Wants, which changes nothing.
class Report {
 public:
  // Cases that have `filter` in "name shape" are wanted, all where it is empty. `progress`: while a
  // case runs, a terminal at standard error says which.
  Report(std::string filter, std::FILE* out, bool progress);
  ~Report();

  bool Wants(const std::string& name, const std::string& shape) const;
  // Something measured of the machine, printed as a line of its own: "reads", 45.2, "GB/s".
  void Machine(const std::string& what, double value, const std::string& unit);
  // And what is no figure: "cpu", "AMD EPYC 9654".
  void Machine(const std::string& what, const std::string& text);
  void Note(const std::string& text);  // a line that is no case
  // Says that a case is about to run.
  void Start(const std::string& name, const std::string& shape);
  // Prints and keeps it, if it is wanted.
  void Add(Result result);

  const std::vector<Result>& results() const { return results_; }
  // {"bench": …, "machine": [{"what", "value", "unit"}, or {"what", "text"}], "cases": [{"name",
  // "shape", "seconds", "gflop_per_second", "gb_per_second", "roofline_fraction" and "bound" where
  // it is known, "more"}]}. Error kResource where the file cannot be written.
  void WriteJson(const std::string& bench, const std::string& device,
                 const std::string& file) const;

 private:
  struct Measured {
    std::string what;
    double value;
    std::string unit;
    std::string text;  // in place of value and unit, unless empty
  };
  void ClearProgress();

  const std::string filter_;
  std::FILE* const out_;
  const bool progress_;
  bool progress_shown_ = false;
  std::vector<Measured> machine_;
  std::vector<Result> results_;
};

// "linear   bfloat16 1 x 2048 x 2048     123.4 us   68.0 GFLOP/s   68.0 GB/s   93 % of memory
// roofline", then " | name value …" where there is more. A figure that is not there is a dash.
std::string Line(const Result& result);

}  // namespace switchyard::bench
