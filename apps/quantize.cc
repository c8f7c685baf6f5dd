// `switchyard quantize`.
#include "model/quantizer/quantize.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "apps/commands.h"
#include "core/cpus.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetweenLines = std::chrono::seconds(2);

std::string Duration(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

// Prints a line for each finished file, and every two seconds within a file.
class ProgressLines {
 public:
  void Show(const QuantizeProgress& p) {
    const Clock::time_point now = Clock::now();
    const bool first = files_ == kNone;
    if (!first && p.shard == files_ && now - printed_ < kBetweenLines) return;
    if (first && p.kept > 0) {
      fmt::print(stderr, "quantize: {} of {} files are finished already\n", p.shard, p.shards);
    }
    files_ = p.shard;
    printed_ = now;
    const double total = static_cast<double>(p.total) * 1e-9;
    const double done = static_cast<double>(p.done) * 1e-9;
    std::string left;
    if (p.done > p.kept && p.done < p.total) {
      const double seconds = std::chrono::duration<double>(now - start_).count();
      const double rate = static_cast<double>(p.done - p.kept) / seconds;
      left = ", " + Duration(static_cast<double>(p.total - p.done) / rate) + " left";
    }
    fmt::print(stderr, "quantize: {} of {} files, {:.2f} of {:.2f} GB read{}\n", p.shard, p.shards,
               done, total, left);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  const Clock::time_point start_ = Clock::now();
  Clock::time_point printed_ = start_;
  size_t files_ = kNone;
};

}  // namespace

int RunQuantize(const QuantizeArgs& args) {
  QuantizeOptions options{
      .from = args.from,
      .to = args.to,
      .rules = {.format = {args.format, args.group_size, args.zero_points}, .ignored = args.ignore},
      .shard_bytes = static_cast<uint64_t>(args.shard_gb * 1e9),
      .threads = args.threads > 0 ? args.threads : AllowedCpuCount()};
  if (!args.config.empty()) ReadQuantizeRules(args.config, &options.rules);
  ProgressLines lines;
  options.progress = [&](const QuantizeProgress& p) { lines.Show(p); };
  const PackingReport report = QuantizeCheckpoint(options);
  fmt::print("{}{} holds the quantized checkpoint and quantization_report.json\n", report.Table(),
             args.to.string());
  return 0;
}

}  // namespace switchyard
