#include "bench/benches.h"

#include <algorithm>

#include "bench/cuda/gpu_benches.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace switchyard::bench {

int CudaRanks(const Options& options, int fewest) {
  constexpr int kMost = 8;  // the largest number of GPUs of a host
  if (cuda::DeviceCount() == 0) throw Invalid("--device cuda: no GPU found; use --device cpu");
  if (options.ranks == 0) return std::clamp(cuda::DeviceCount(), fewest, kMost);
  if (options.ranks < fewest || options.ranks > kMost)
    throw Invalid("--ranks {}: want {} to {}", options.ranks, fewest, kMost);
  return options.ranks;
}

void CudaKernels(const Options& options, Report& report) {
  CudaRanks({}, 1);
  const GpuMachine machine = MeasureGpuMachine(options.gpu, report);
  GroupedGemmBench(options, machine, report);
  W4A16Bench(options, machine, report);
  ExpertChainBench(options, machine, report);
  DenseGemmBench(options, machine, report);
  AttentionBench(options, machine, report);
  DeviceOpsBench(options, machine, report);
}

void CudaExchange(const Options& options, Report& report) {
  const double link = DispatchCombineBench(options, report);
  CollectivesBench(options, link, report);
}

}  // namespace switchyard::bench
