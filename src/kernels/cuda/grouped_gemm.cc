#include "kernels/cuda/grouped_gemm.h"

#include "core/error.h"
#include "kernels/cuda/grouped_gemm_launch.h"
#include "kernels/cuda/tensor_map.h"

namespace switchyard::cuda {
namespace {

void Run(const GroupedGemmParams& p, bool fp8, cudaStream_t stream) {
  const int element_bytes = fp8 ? 1 : 2, block_k = kRowBytes / element_bytes;
  const int block_n = fp8 ? kBlockNFp8 : kBlockNBf16;
  if (p.rows % kGroupBlockRows != 0 || p.n % 64 != 0 || p.k % block_k != 0)
    throw Invalid("grouped GEMM of {} rows, n {}, k {}: want multiples of {}, {} and {}", p.rows,
                  p.n, p.k, kGroupBlockRows, 64, block_k);
  if (p.rows == 0) return;
  const GroupedGemmLaunch launch = {
      .params = p,
      .fp8 = fp8,
      .a_map = MakeTensorMap(p.a, p.rows, p.k, element_bytes, kGroupBlockRows / kCluster, block_k),
      .b_map = MakeTensorMap(p.b, p.groups * p.n, p.k, element_bytes, block_n, block_k),
      .d_map = MakeTensorMap(p.d, p.rows, p.n, 2, 64, 64)};
  const cudaError_t error = StartGroupedGemm(launch, stream);
  if (error != cudaSuccess)
    throw Resource("grouped GEMM does not start: {}", cudaGetErrorString(error));
}

}  // namespace

void GroupedGemmFp8(const GroupedGemmParams& p, cudaStream_t stream) { Run(p, true, stream); }
void GroupedGemmBf16(const GroupedGemmParams& p, cudaStream_t stream) { Run(p, false, stream); }

}  // namespace switchyard::cuda
