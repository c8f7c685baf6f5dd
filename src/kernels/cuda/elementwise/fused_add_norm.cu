// Problem: x [m, n] += add, then y = norm(x) · weight in float32, bfloat16 or e4m3 (semantics:
// kernels/fused_ops.h; RMSNorm: Zhang and Sennrich 2019).
// Tiling: a block of 512 threads takes 16 rows of up to 1024 elements, one per warp, or one longer
// row. Grid: m / rows per block, rounded up. Sums are in double, as in ops_norm.cu.
// Pipeline: with few rows, a thread loads its weights before it waits for earlier kernels
// (kernel_chain.cuh), and keeps its elements in registers.
// Measured on one H200, Qwen3-30B-A3B in bfloat16: 3.3 µs with one row, 58 µs with 8192.
#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/elementwise/ops_norm.cuh"
#include "kernels/cuda/elementwise/ops_rows.h"
#include "kernels/cuda/quantized/fp8.cuh"

namespace switchyard::cuda::ops {
namespace {

using kernels::RoundedForm;

constexpr int64_t kGroup = 128;  // elements of an FP8 scale; a warp has a whole group

template <bool kFp8>
__device__ __forceinline__ void StoreNormed(const kernels::AddNormParams& p, int64_t row, int64_t i,
                                            float4 v) {
  const int64_t at = row * p.n + i;
  if (p.y != nullptr) StoreRow4<true>(p.y + row * p.n, i, p.n, v);
  if constexpr (kFp8) {
    const Fp8Four quantized = QuantizeFour(v);
    *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(p.rounded.data) + at) = quantized.codes;
    if (threadIdx.x % kWarp == 0)
      p.rounded.scales[i / kGroup * p.rounded.scale_stride + row] = quantized.scale;
  } else if (p.rounded.form == RoundedForm::kBFloat16) {
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.rounded.data) + at) = ToBf16x4(v);
  }
}

__device__ __forceinline__ float4 Sum(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// For many rows: few registers, so that four blocks fit an SM. A thread adds, squares and scales
// the same elements, so it only rereads its own writes.
template <bool kWholeBlock, bool kFp8>
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
      v = Sum(v, LoadRow4<true>(add, i, p.n));
      StoreRow4<true>(x, i, p.n, v);
    }
    squares += SquaresOf(v);
  }
  const float scale = ScaleOf(Rows::Sum(squares), p.n, p.eps);
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < p.n; i += Rows::kSize * 4) {
    const float4 w = LoadRow4<true>(p.weight, i, p.n);
    StoreNormed<kFp8>(p, row, i, Scaled(LoadRow4<true>(x, i, p.n), scale, w));
  }
}

// For few rows of up to kFewLength elements, with the same bits: a thread has its elements in
// registers and loads their weights before it waits for earlier kernels.
constexpr int kKept = 4;
constexpr int64_t kFewLength = int64_t{kKept} * kNormThreads * 4;

template <bool kFp8>
__global__ void __launch_bounds__(kNormThreads) AddNormFewKernel(kernels::AddNormParams p) {
  using Rows = RowThreads<true>;
  constexpr int64_t kStep = Rows::kSize * 4;
  LaunchDependents();
  const int64_t row = blockIdx.x, own = Rows::Rank() * 4;
  float4 weights[kKept], kept[kKept], added[kKept];
#pragma unroll
  for (int j = 0; j < kKept; ++j) weights[j] = LoadRow4<true>(p.weight, own + j * kStep, p.n);
  WaitForPriorKernels();
  float* x = p.x + row * p.n;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    kept[j] = LoadRow4<true>(x, own + j * kStep, p.n);
    if (p.add != nullptr) added[j] = LoadRow4<true>(p.add + row * p.n, own + j * kStep, p.n);
  }
  double squares = 0;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    if (p.add != nullptr) {
      kept[j] = Sum(kept[j], added[j]);
      StoreRow4<true>(x, own + j * kStep, p.n, kept[j]);
    }
    squares += SquaresOf(kept[j]);  // zeros beyond the row
  }
  const float scale = ScaleOf(Rows::Sum(squares), p.n, p.eps);
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int64_t i = own + j * kStep;
    if (i < p.n) StoreNormed<kFp8>(p, row, i, Scaled(kept[j], scale, weights[j]));
  }
}

template <bool kFp8>
cudaError_t Start(const kernels::AddNormParams& p, const PdlStream& chain) {
  const bool whole = p.n > kWarpRow;
  if (whole && p.n <= kFewLength && p.m <= kFewNormRows)
    return LaunchWithPdl(AddNormFewKernel<kFp8>, dim3(static_cast<unsigned>(p.m)), kNormThreads, 0,
                         chain, p);
  const int rows = whole ? RowThreads<true>::kRowsPerBlock : RowThreads<false>::kRowsPerBlock;
  return LaunchWithPdl(whole ? AddNormKernel<true, kFp8> : AddNormKernel<false, kFp8>,
                       dim3(static_cast<unsigned>(CeilDiv(p.m, rows))), kNormThreads, 0, chain, p);
}

}  // namespace

cudaError_t AddNorm(const kernels::AddNormParams& p, const PdlStream& chain) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  for (const void* at : {static_cast<const void*>(p.x), static_cast<const void*>(p.add),
                         static_cast<const void*>(p.weight), static_cast<const void*>(p.y),
                         static_cast<const void*>(p.rounded.data)})
    if (!Aligned16(at)) return cudaErrorInvalidValue;
  const bool fp8 = p.rounded.form == RoundedForm::kFp8Groups;
  if (p.n % (fp8 ? kGroup : 4) != 0 || (fp8 && p.rounded.scale_stride < p.m))
    return cudaErrorInvalidValue;
  return fp8 ? Start<true>(p, chain) : Start<false>(p, chain);
}

}  // namespace switchyard::cuda::ops
