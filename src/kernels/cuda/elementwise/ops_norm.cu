// Problem: norms of rows [m, n]: RMS norm (Zhang and Sennrich 2019), its two halves for rows that
// are sharded over ranks (sums of squares, scaling), and LayerNorm (Ba et al. 2016).
// Tiling: a block of 512 threads takes 16 rows of up to 1024 elements, one per warp, or one longer
// row. Grid: rows / rows per block, rounded up. Sums are in double.
// Pipeline: none; a pass after the first one (LayerNorm: two) reads the row from cache.
// Measured: not measured alone.
#include <algorithm>

#include "kernels/cuda/elementwise/ops_norm.cuh"
#include "kernels/cuda/elementwise/ops_rows.h"

namespace switchyard::cuda::ops {
namespace {

template <bool kWholeBlock, bool kAligned>
__global__ void __launch_bounds__(kNormThreads) RmsNormKernel(kernels::RmsNormParams p) {
  using Rows = RowThreads<kWholeBlock>;
  const int64_t row = Rows::Row();
  if (row >= p.m) return;
  const float* x = p.x + row * p.ldx;
  const double squares = RowSquares<Rows, kAligned>(x, p.n);
  const float scale = ScaleOf(squares, p.n, p.eps);
  ScaleRow<Rows, kAligned>(x, scale, p.weight, p.y + row * p.ldy, p.n);
}

template <bool kWholeBlock, bool kAligned>
__global__ void __launch_bounds__(kNormThreads) SumSquaresKernel(kernels::SumSquaresParams p) {
  using Rows = RowThreads<kWholeBlock>;
  const int64_t row = Rows::Row();
  if (row >= p.m) return;
  const double squares = RowSquares<Rows, kAligned>(p.x + row * p.n, p.n);
  if (Rows::Rank() == 0) p.squares[row] = static_cast<float>(squares);
}

template <bool kWholeBlock, bool kAligned>
__global__ void __launch_bounds__(kNormThreads)
    ScaleBySquaresKernel(kernels::ScaleBySquaresParams p) {
  using Rows = RowThreads<kWholeBlock>;
  const int64_t row = Rows::Row();
  if (row >= p.m) return;
  const double mean = double{p.squares[row]} / static_cast<double>(p.total);
  const auto scale = static_cast<float>(1.0 / sqrt(mean + p.eps));
  float* x = p.x + row * p.n;
  ScaleRow<Rows, kAligned>(x, scale, p.weight, x, p.n);
}

// Reads the row three times: for the mean, the variance and the results. The last two times it is
// in cache. One pass for both sums would cancel digits if the mean is large.
template <bool kWholeBlock, bool kAligned>
__global__ void __launch_bounds__(kNormThreads) LayerNormKernel(kernels::LayerNormParams p) {
  using Rows = RowThreads<kWholeBlock>;
  const int64_t row = Rows::Row();
  if (row >= p.m) return;
  const float* x = p.x + row * p.ldx;
  float* y = p.y + row * p.ldy;
  const double mean = RowSum<Rows, kAligned>(x, p.n) / static_cast<double>(p.n);
  if constexpr (kWholeBlock) __syncthreads();  // both sums use the same shared memory
  const double squares = RowDeviations<Rows, kAligned>(x, mean, p.n);
  const double scale = 1.0 / sqrt(squares / static_cast<double>(p.n) + p.eps);
  const auto element = [&](float v, float w, float b) {
    return static_cast<float>(fma((v - mean) * scale, double{w}, double{b}));
  };
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < p.n; i += Rows::kSize * 4) {
    const float4 v = LoadRow4<kAligned>(x, i, p.n), w = LoadRow4<kAligned>(p.weight, i, p.n);
    const float4 b = LoadRow4<kAligned>(p.bias, i, p.n);
    StoreRow4<kAligned>(y, i, p.n,
                        {element(v.x, w.x, b.x), element(v.y, w.y, b.y), element(v.z, w.z, b.z),
                         element(v.w, w.w, b.w)});
  }
}

// Launches the variant for rows of n elements.
#define SWITCHYARD_LAUNCH_ROWS(KERNEL, P, ALIGNED, STREAM)                                  \
  do {                                                                                      \
    const bool whole = (P).n > kWarpRow;                                                    \
    const auto kernel = whole ? ((ALIGNED) ? KERNEL<true, true> : KERNEL<true, false>)      \
                              : ((ALIGNED) ? KERNEL<false, true> : KERNEL<false, false>);   \
    const int64_t blocks = CeilDiv(                                                         \
        (P).m, whole ? RowThreads<true>::kRowsPerBlock : RowThreads<false>::kRowsPerBlock); \
    kernel<<<static_cast<unsigned>(blocks), kNormThreads, 0, STREAM>>>(P);                  \
  } while (false)

}  // namespace

cudaError_t RmsNorm(const kernels::RmsNormParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  const bool aligned =
      RowsAligned(p.x, p.ldx, p.n) && RowsAligned(p.y, p.ldy, p.n) && Aligned16(p.weight);
  SWITCHYARD_LAUNCH_ROWS(RmsNormKernel, p, aligned, stream);
  return cudaGetLastError();
}

cudaError_t LayerNorm(const kernels::LayerNormParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  const bool aligned = RowsAligned(p.x, p.ldx, p.n) && RowsAligned(p.y, p.ldy, p.n) &&
                       Aligned16(p.weight) && Aligned16(p.bias);
  SWITCHYARD_LAUNCH_ROWS(LayerNormKernel, p, aligned, stream);
  return cudaGetLastError();
}

cudaError_t SumSquares(const kernels::SumSquaresParams& p, cudaStream_t stream) {
  if (p.m == 0) return cudaSuccess;
  const bool aligned = RowsAligned(p.x, p.n, p.n);
  SWITCHYARD_LAUNCH_ROWS(SumSquaresKernel, p, aligned, stream);
  return cudaGetLastError();
}

cudaError_t ScaleBySquares(const kernels::ScaleBySquaresParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  const bool aligned = RowsAligned(p.x, p.n, p.n) && Aligned16(p.weight);
  SWITCHYARD_LAUNCH_ROWS(ScaleBySquaresKernel, p, aligned, stream);
  return cudaGetLastError();
}

#undef SWITCHYARD_LAUNCH_ROWS

}  // namespace switchyard::cuda::ops
