// Fused residual add and RMS norm: x += add, then y = norm(x) · weight in float32, bfloat16 or both
// (semantics: kernels/fused_ops.h). A block of 512 threads takes 16 rows of up to 1024 elements,
// one per warp, or one longer row. Sums are in double, as in ops_norm.cu.
#include "kernels/cuda/fused_rows.h"
#include "kernels/cuda/kernel_chain.cuh"
#include "kernels/cuda/ops_norm.cuh"

namespace switchyard::cuda::ops {
namespace {

// A thread adds, squares and scales the same elements, so it only rereads its own writes.
template <bool kWholeBlock>
__global__ void __launch_bounds__(kNormThreads) AddNormKernel(kernels::AddNormParams p) {
  using Rows = RowThreads<kWholeBlock>;
  LaunchDependentsAndWait();
  const int64_t row = Rows::Row();
  if (row >= p.m) return;
  float* x = p.x + row * p.n;
  const float* add = p.add + row * p.n;
  double squares = 0;
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < p.n; i += Rows::kSize * 4) {
    float4 v = LoadRow4<true>(x, i, p.n);
    if (p.add != nullptr) {
      const float4 b = LoadRow4<true>(add, i, p.n);
      v.x += b.x, v.y += b.y, v.z += b.z, v.w += b.w;
      StoreRow4<true>(x, i, p.n, v);
    }
    squares += SquaresOf(v);
  }
  const float scale = ScaleOf(Rows::Sum(squares), p.n, p.eps);
  float* y = p.y + row * p.n;
  auto* bf16_rows = static_cast<uint16_t*>(p.bf16_rows) + row * p.n;
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < p.n; i += Rows::kSize * 4) {
    const float4 w = LoadRow4<true>(p.weight, i, p.n);
    const float4 v = Scaled(LoadRow4<true>(x, i, p.n), scale, w);
    if (p.y != nullptr) StoreRow4<true>(y, i, p.n, v);
    if (p.bf16_rows != nullptr) *reinterpret_cast<uint2*>(bf16_rows + i) = ToBf16x4(v);
  }
}

}  // namespace

cudaError_t AddNorm(const kernels::AddNormParams& p, const PdlStream& chain) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  for (const void* at : {static_cast<const void*>(p.x), static_cast<const void*>(p.add),
                         static_cast<const void*>(p.weight), static_cast<const void*>(p.y),
                         static_cast<const void*>(p.bf16_rows)})
    if (!Aligned16(at)) return cudaErrorInvalidValue;
  if (p.n % 4 != 0) return cudaErrorInvalidValue;
  const bool whole = p.n > kWarpRow;
  const int rows = whole ? RowThreads<true>::kRowsPerBlock : RowThreads<false>::kRowsPerBlock;
  return LaunchWithPdl(whole ? AddNormKernel<true> : AddNormKernel<false>,
                       dim3(static_cast<unsigned>(CeilDiv(p.m, rows))), kNormThreads, 0, chain, p);
}

}  // namespace switchyard::cuda::ops
