// `switchyard bench kernels`, `moe-layer`, `exchange`, `roofline` and `calibrate`: the benchmarks
// of bench/ for the requested device.
#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "apps/commands.h"
#include "bench/benches.h"
#include "bench/calibration.h"
#include "core/error.h"
#include "kernels/gpus.h"
#include "kernels/ops.h"

namespace switchyard {
namespace {

using Benchmark = void (*)(const bench::Options&, bench::Report&);

Benchmark Find(const std::string& which, bool cuda) {
  if (which == "kernels") return cuda ? bench::CudaKernels : bench::CpuKernels;
  if (which == "moe-layer") return cuda ? bench::CudaMoeLayer : bench::CpuMoeLayer;
  if (which == "roofline") return cuda ? bench::CudaRoofline : bench::CpuRoofline;
  return cuda ? bench::CudaExchange : bench::CpuExchange;
}

// Checks that the --json file can be written. Called before the measurements, which take minutes.
// Creates no file.
void CheckWritable(const std::string& file) {
  const bool existed = std::filesystem::exists(file);
  if (!std::ofstream(file, std::ios::app)) throw Resource("--json {}: cannot be written", file);
  if (!existed) std::filesystem::remove(file);
}

// Without --json, the cost table is written to standard output, so nothing else may be printed
// there.
int Calibrate(const BenchArgs& args, bool cuda) {
  bench::Report report("", args.json.empty() ? stderr : stdout, /*progress=*/true);
  const bench::Options options = {.threads = args.threads, .gpu = args.base_gpu_id};
  const std::string table = plan::ToJson(cuda ? bench::CalibrateCuda(options, report)
                                              : bench::CalibrateCpu(options, report));
  if (args.json.empty()) {
    fmt::print("{}", table);
  } else if (!(std::ofstream(args.json) << table)) {
    throw Resource("--json {}: cannot be written", args.json);
  }
  return 0;
}

}  // namespace

int RunBench(const BenchArgs& args, const std::shared_ptr<const MoeBackends>& backends) {
  const bool cuda = args.device == "cuda" || (args.device == "auto" && !FindGpus().empty());
  kernels::SelectIsa(args.cpu_isa);
  if (!args.json.empty()) CheckWritable(args.json);
  if (args.which == "calibrate") return Calibrate(args, cuda);
  bench::Report report(args.filter, stdout, /*progress=*/true);
  Find(args.which, cuda)({.ranks = args.ranks,
                          .threads = args.threads,
                          .gpu = args.base_gpu_id,
                          .tokens = args.tokens,
                          .model = args.model,
                          .experts_per_rank = args.experts_per_rank,
                          .backends = backends},
                         report);
  if (report.results().empty())
    throw Invalid("--filter {}: no case of bench {} has this text in its name or shape",
                  args.filter, args.which);
  if (!args.json.empty()) report.WriteJson(args.which, cuda ? "cuda" : "cpu", args.json);
  return 0;
}

}  // namespace switchyard
