// `switchyard bench roofline` for GPUs; an error in builds without CUDA.
#include "bench/benches.h"
#include "kernels/roofline.h"

namespace switchyard::bench {

void CudaRoofline(const Options& options, Report& report) {
  const kernels::GpuCeilings ceilings = kernels::MeasureGpu(options.gpu);
  constexpr double kBytes = 1e9, kOperations = 1e12;
  report.Add({.name = "copy",
              .shape = "memory",
              .seconds = kBytes / ceilings.copy_bandwidth,
              .bytes = kBytes});
  if (ceilings.bf16_flops == 0.0) return;
  report.Add({.name = "multiply",
              .shape = "bfloat16 8192 x 8192 x 8192",
              .seconds = kOperations / ceilings.bf16_flops,
              .flops = kOperations});
}

}  // namespace switchyard::bench
