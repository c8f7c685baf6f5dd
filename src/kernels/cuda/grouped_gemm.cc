#include "kernels/cuda/grouped_gemm.h"

#include "core/error.h"
#include "kernels/cuda/gemm_problem.h"

namespace switchyard::cuda {
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

}  // namespace switchyard::cuda
