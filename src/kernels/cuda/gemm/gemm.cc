#include "kernels/cuda/gemm/gemm.h"

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"

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

namespace {

void Run(const GroupedGemmParams& p, bool fp8, const PdlStream& chain) {
  const bool few_rows = p.group_rows != nullptr;
  const int row_step = few_rows ? 4 : kGroupBlockRows, k_step = fp8 ? 128 : 64;
  if (p.rows % row_step != 0 || p.n % 64 != 0 || p.k % k_step != 0)
    throw Invalid("grouped GEMM rows={} n={} k={}: must be multiples of {}, {} and {}", p.rows, p.n,
                  p.k, row_step, 64, k_step);
  if (p.groups > kMaxGemmGroups)
    throw Invalid("grouped GEMM with {} groups: at most {} supported", p.groups, kMaxGemmGroups);
  const GemmProblem problem = {.fp8 = fp8,
                               .a = p.a,
                               .lda = p.k,
                               .a_scales = p.a_scales,
                               .ld_a_scales = p.ld_a_scales > 0 ? p.ld_a_scales : p.rows,
                               .b = p.b,
                               .b_scales = p.b_scales,
                               .bias = p.bias,
                               .d = p.d,
                               .ldd = p.n,
                               .float_output = p.float_output,
                               .block_groups = p.block_groups,
                               .group_begins = p.group_begins,
                               .group_rows = p.group_rows,
                               .groups_ready = p.groups_ready,
                               .rows = p.rows,
                               .n = p.n,
                               .k = p.k,
                               .groups = p.groups};
  const CurrentGpu gpu = FindCurrentGpu();
  LaunchGemm(problem, few_rows ? PlanFewRows(p.groups, p.n, gpu.processors) : PlanManyRows(fp8),
             gpu, chain);
}

}  // namespace

void GroupedGemmFp8(const GroupedGemmParams& p, const PdlStream& chain) { Run(p, true, chain); }
void GroupedGemmBf16(const GroupedGemmParams& p, const PdlStream& chain) { Run(p, false, chain); }

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
        "dense GEMM m={} n={} k={} ldx={} ldy={}: unsupported shape or alignment (gemm.h)", p.m,
        p.n, p.k, p.ldx, p.ldy);
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

void GroupedGemmW4A16(const W4A16GemmParams& p, const PdlStream& chain) {
  constexpr int64_t kStep = 8;  // elements in 16 bytes
  if (p.n % kStep != 0 || p.k % kStep != 0 || p.k == 0)
    throw Invalid("W4A16 GEMM n={} k={}: must be multiples of {}", p.n, p.k, kStep);
  if (p.groups > kMaxGemmGroups)
    throw Invalid("W4A16 GEMM with {} groups: at most {} supported", p.groups, kMaxGemmGroups);
  if (p.rows == 0 || p.n == 0 || p.groups == 0) return;
  const CurrentGpu gpu = FindCurrentGpu();
  W4A16Launch launch = {
      .params = p, .plan = PlanFewRows(p.groups, p.n, gpu.processors), .gpu = gpu};
  int box_rows = 64;
  for (CUtensorMap& map : launch.a_maps) {
    map = MakeTensorMap(p.a, p.rows, p.k, 2, box_rows, kW4A16Tile);
    box_rows /= 2;
  }
  const auto start = p.format.kind == W4A16Kind::kMxfp4   ? StartW4A16Mxfp4
                     : p.format.kind == W4A16Kind::kNvfp4 ? StartW4A16Nvfp4
                                                          : StartW4A16Int4;
  Check(start(launch, chain), "W4A16 GEMM launch");
}

}  // namespace switchyard::cuda
