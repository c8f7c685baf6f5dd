#include "bench/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace switchyard::bench {
namespace {

const char* NameOf(Bound bound) {
  switch (bound) {
    case Bound::kMemory:
      return "memory";
    case Bound::kCompute:
      return "compute";
    case Bound::kLink:
      return "link";
    case Bound::kUnknown:
      break;
  }
  return "unknown";
}

std::string Rate(double amount, double seconds, const char* unit) {
  if (amount <= 0.0) return fmt::format("{:>9} {}", "-", unit);
  return fmt::format("{:9.1f} {}", amount / seconds * 1e-9, unit);
}

}  // namespace

Limit Roofline(double bytes, double bandwidth, double flops, double peak) {
  const double moved = bytes / bandwidth;
  const double computed = peak > 0.0 ? flops / peak : 0.0;
  return moved > computed ? Limit{moved, Bound::kMemory} : Limit{computed, Bound::kCompute};
}

Limit LinkLimit(double bytes, double bandwidth) { return {bytes / bandwidth, Bound::kLink}; }

std::string Line(const Result& r) {
  std::string line =
      fmt::format("{:<16} {:<50} {:10.1f} us {} {} ", r.name, r.shape, r.seconds * 1e6,
                  Rate(r.flops, r.seconds, "GFLOP/s"), Rate(r.bytes, r.seconds, "GB/s"));
  if (r.limit.bound == Bound::kUnknown) {
    line += "   - of roofline";
  } else {
    line += fmt::format("{:4.0f} % of {} roofline", 100 * r.limit.seconds / r.seconds,
                        NameOf(r.limit.bound));
  }
  const char* separator = " | ";
  for (const auto& [name, value] : r.more) {
    line += value < 1000 ? fmt::format("{}{} {:.4g}", separator, name, value)
                         : fmt::format("{}{} {:.0f}", separator, name, value);
    separator = ", ";
  }
  return line;
}

Report::Report(std::string filter, std::FILE* out, bool progress)
    : filter_(std::move(filter)), out_(out), progress_(progress && isatty(fileno(stderr)) != 0) {}

Report::~Report() { ClearProgress(); }

bool Report::Selects(const std::string& name, const std::string& shape) const {
  if (wanted_ && !wanted_(name, shape)) return false;
  return filter_.empty() || (name + ' ' + shape).find(filter_) != std::string::npos;
}

void Report::Machine(const std::string& what, double value, const std::string& unit) {
  machine_.push_back({what, value, unit, {}});
  Note(fmt::format("{}: {:.1f} {}", what, value, unit));
}

void Report::Machine(const std::string& what, const std::string& text) {
  machine_.push_back({what, 0.0, {}, text});
  Note(fmt::format("{}: {}", what, text));
}

void Report::Note(const std::string& text) {
  ClearProgress();
  fmt::print(out_, "# {}\n", text);
  std::fflush(out_);
}

void Report::Start(const std::string& name, const std::string& shape) {
  if (!progress_) return;
  ClearProgress();
  fmt::print(stderr, "{} done, now: {} {}", results_.size(), name, shape);
  std::fflush(stderr);
  progress_shown_ = true;
}

void Report::Add(Result result) {
  if (!Selects(result.name, result.shape)) return;
  ClearProgress();
  fmt::print(out_, "{}\n", Line(result));
  std::fflush(out_);
  results_.push_back(std::move(result));
}

void Report::WriteJson(const std::string& bench, const std::string& device,
                       const std::string& file) const {
  nlohmann::ordered_json all = {{"bench", bench}, {"device", device}};
  all["machine"] = nlohmann::ordered_json::array();
  for (const Measured& m : machine_) {
    if (!m.text.empty()) {
      all["machine"].push_back({{"what", m.what}, {"text", m.text}});
    } else {
      all["machine"].push_back({{"what", m.what}, {"value", m.value}, {"unit", m.unit}});
    }
  }
  all["cases"] = nlohmann::ordered_json::array();
  for (const Result& r : results_) {
    nlohmann::ordered_json row = {{"name", r.name},
                                  {"shape", r.shape},
                                  {"seconds", r.seconds},
                                  {"gflop_per_second", r.flops / r.seconds * 1e-9},
                                  {"gb_per_second", r.bytes / r.seconds * 1e-9}};
    if (r.limit.bound != Bound::kUnknown) {
      row["roofline_fraction"] = r.limit.seconds / r.seconds;
      row["bound"] = NameOf(r.limit.bound);
    }
    for (const auto& [name, value] : r.more) row["more"][name] = value;
    all["cases"].push_back(std::move(row));
  }
  std::ofstream out(file);
  if (!(out << all.dump(2) << "\n")) throw Resource("--json {}: cannot be written", file);
}

void Report::ClearProgress() {
  if (!progress_shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  progress_shown_ = false;
}

}  // namespace switchyard::bench
