#include "kernels/cuda/w4a16_gemm.h"

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/w4a16_launch.h"

namespace switchyard::cuda {

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
