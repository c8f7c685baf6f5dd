// The report of every benchmark: printed lines and JSON.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::bench {

// The resource that limits a case: memory bandwidth, arithmetic, or the link to another rank. For
// ranks on CPUs, the rate of the link is that of a memcpy.
enum class Bound { kUnknown, kMemory, kCompute, kLink };

// Lower bound of a case's time, and its cause.
struct Limit {
  double seconds = 0.0;
  Bound bound = Bound::kUnknown;
};
// max(bytes / bandwidth, flops / peak). The arguments are in bytes, bytes per second, operations,
// and operations per second. A peak of 0 is unknown.
Limit Roofline(double bytes, double bandwidth, double flops, double peak);
Limit LinkLimit(double bytes, double bandwidth);

// One case.
struct Result {
  std::string name;      // name of the operation: "linear"
  std::string shape;     // "bfloat16 1 x 2048 x 2048"
  double seconds = 0.0;  // median of one call
  double flops = 0.0;    // operations of one call; a multiply-add is two; 0: not reported
  double bytes = 0.0;    // bytes that one call has to move; 0: not reported
  Limit limit;
  // Further figures; the name contains the unit: {"error", 1.7e-3}, {"route us", 43.2}.
  std::vector<std::pair<std::string, double>> more;
};

// Prints each case as soon as it is measured, and keeps all for the JSON. Not thread-safe, so only
// rank 0 uses it. The exception is the const function Selects, which all ranks may call.
class Report {
 public:
  // A case is wanted if its "name shape" contains `filter`. If `filter` is empty, all cases are
  // wanted. `progress`: show the running case on standard error if it is a terminal.
  Report(std::string filter, std::FILE* out, bool progress);
  ~Report();

  bool Selects(const std::string& name, const std::string& shape) const;
  // From now on, cases are wanted only if `wanted`(name, shape) is true as well.
  void Restrict(std::function<bool(const std::string& name, const std::string& shape)> wanted) {
    wanted_ = std::move(wanted);
  }
  // A measured value of the machine, printed as a line: "reads", 45.2, "GB/s".
  void Machine(const std::string& what, double value, const std::string& unit);
  // A property of the machine without a number: "cpu", "AMD EPYC 9654".
  void Machine(const std::string& what, const std::string& text);
  void Note(const std::string& text);  // a line that belongs to no case
  // Shows a case as running.
  void Start(const std::string& name, const std::string& shape);
  // Prints and keeps a case, if it is wanted.
  void Add(Result result);

  const std::vector<Result>& results() const { return results_; }
  // {"bench": …, "machine": [{"what", "value", "unit"} or {"what", "text"}], "cases": [{"name",
  // "shape", "seconds", "gflop_per_second", "gb_per_second", "roofline_fraction" and "bound" if
  // known, "more"}]}. Error kResource if the file cannot be written.
  void WriteJson(const std::string& bench, const std::string& device,
                 const std::string& file) const;

 private:
  struct Measured {
    std::string what;
    double value;
    std::string unit;
    std::string text;  // not empty: instead of value and unit
  };
  void ClearProgress();

  const std::string filter_;
  std::function<bool(const std::string&, const std::string&)> wanted_;  // or empty
  std::FILE* const out_;
  const bool progress_;
  bool progress_shown_ = false;
  std::vector<Measured> machine_;
  std::vector<Result> results_;
};

// "linear   bfloat16 1 x 2048 x 2048     123.4 us   68.0 GFLOP/s   68.0 GB/s   93 % of memory
// roofline", then " | name value …" for further figures. A missing figure is a dash.
std::string Line(const Result& result);

}  // namespace switchyard::bench
