#include "kernels/cuda/dense_gemm.h"

#include "core/error.h"
#include "kernels/cuda/gemm_problem.h"

namespace switchyard::cuda {
namespace {

bool Aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

bool DenseGemmTakes(const DenseGemmParams& p) {
  const bool fp8 = p.x_scales != nullptr;
  const int64_t ldx = p.ldx ? p.ldx : p.k, ldy = p.ldy ? p.ldy : p.n;
  const bool inputs = p.k > 0 && p.k % (fp8 ? 128 : 8) == 0 && ldx % (fp8 ? 16 : 8) == 0 &&
                      Aligned(p.x, 16) && Aligned(p.w, 16);
  const bool scales =
      fp8 == (p.w_scales != nullptr) &&
      (!fp8 || ((p.ld_x_scales ? p.ld_x_scales : p.m) % 4 == 0 && Aligned(p.x_scales, 16)));
  const bool output = p.float_output
                          ? Aligned(p.y, 8)
                          : !p.accumulate && p.n % 8 == 0 && ldy % 8 == 0 && Aligned(p.y, 16);
  return inputs && scales && output;
}

void DenseGemm(const DenseGemmParams& p, const PdlStream& chain) {
  if (!DenseGemmTakes(p))
    throw Invalid(
        "dense GEMM m={} n={} k={} ldx={} ldy={}: unsupported shape or alignment (dense_gemm.h)",
        p.m, p.n, p.k, p.ldx, p.ldy);
  const bool fp8 = p.x_scales != nullptr;
  const GemmProblem problem = {.fp8 = fp8,
                               .a = p.x,
                               .lda = p.ldx ? p.ldx : p.k,
                               .a_scales = p.x_scales,
                               .ld_a_scales = p.ld_x_scales ? p.ld_x_scales : p.m,
                               .b = p.w,
                               .b_scales = p.w_scales,
                               .bias = p.bias,
                               .d = p.y,
                               .ldd = p.ldy ? p.ldy : p.n,
                               .float_output = p.float_output,
                               .accumulate = p.accumulate,
                               .rows = p.m,
                               .n = p.n,
                               .k = p.k};
  const CurrentGpu gpu = FindCurrentGpu();
  LaunchGemm(problem, PlanDenseGemm(fp8, p.m, p.n, p.k, gpu.processors), gpu, chain);
}

}  // namespace switchyard::cuda
