#include "core/cuda/runtime.h"
#include "core/error.h"
#include "kernels/cuda/gemm_problem.h"
#include "kernels/cuda/tensor_map.h"

namespace switchyard::cuda {

CurrentGpu FindCurrentGpu() {
  CurrentGpu gpu;
  Check(cudaGetDevice(&gpu.index), "reading the current GPU");
  Check(cudaDeviceGetAttribute(&gpu.processors, cudaDevAttrMultiProcessorCount, gpu.index),
        "reading the GPU's SM count");
  return gpu;
}

void LaunchGemm(const GemmProblem& p, const GemmPlan& plan, const CurrentGpu& gpu,
                const PdlStream& chain) {
  if (p.rows == 0 || p.n == 0 || p.groups == 0) return;
  const int bytes = p.fp8 ? 1 : 2, step = kGemmRowBytes / bytes;
  GemmLaunch launch = {.problem = p, .plan = plan, .gpu = gpu};
  const auto tile = [&](const void* data, int64_t rows, int64_t stride, int box_rows) {
    return plan.steps == 1 ? MakeTensorMap(data, rows, p.k, bytes, box_rows, step, stride)
                           : MakeTensorMap3d(data, rows, p.k, bytes, box_rows, plan.steps, stride);
  };
  launch.b_map = tile(p.b, p.groups * p.n, p.k, plan.weight_rows);
  launch.a_map = tile(p.a, p.rows, p.lda, plan.steps == 1 ? 64 : TileTokens(p.rows));
  if (plan.few_rows && plan.steps == 1) launch.a_small_map = tile(p.a, p.rows, p.lda, 16);
  if (p.fp8)
    launch.scales_map = MakeTensorMap(p.a_scales, p.k / 128, p.rows, 4, plan.steps,
                                      plan.few_rows ? 64 : kManyRowsTokens, p.ld_a_scales);
  if (!plan.few_rows && !p.float_output)
    launch.d_map = MakeTensorMap(p.d, p.rows, p.n, 2, 64, 64, p.ldd);
  Check(plan.few_rows ? StartFewRowsGemm(launch, chain) : StartManyRowsGemm(launch, chain.stream),
        "GEMM launch");
}

}  // namespace switchyard::cuda
