// Norms of rows. How a row's sum is cut depends on its length alone: short rows (heads) have a warp
// each, others a block. Sums are taken in double, as the CPU's are.
#include <algorithm>

#include "kernels/cuda/ops_elements.cuh"
#include "kernels/cuda/ops_rows.h"

namespace switchyard::cuda::ops {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kWarpRow = 1024;  // the longest row of a warp

__device__ __forceinline__ double WarpSum(double value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// The threads that share a row.
template <bool kWholeBlock>
struct Team {
  static constexpr int kSize = kWholeBlock ? kThreads : kWarp;
  static constexpr int kRowsPerBlock = kThreads / kSize;
  static __device__ int Rank() { return threadIdx.x % kSize; }
  static __device__ int64_t Row() {
    return int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kSize;
  }
  static __device__ double Sum(double value) {
    value = WarpSum(value);
    if constexpr (kWholeBlock) {
      __shared__ double parts[kThreads / kWarp];
      if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
      __syncthreads();
      value = 0;
      for (const double part : parts) value += part;
    }
    return value;
  }
};

template <typename Rows, bool kAligned>
__device__ __forceinline__ double RowSquares(const float* x, int64_t n) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < n; i += Rows::kSize * 4) {
    const float4 v = LoadRow4<kAligned>(x, i, n);
    sum += (double{v.x} * v.x + double{v.y} * v.y) + (double{v.z} * v.z + double{v.w} * v.w);
  }
  return Rows::Sum(sum);
}

template <typename Rows, bool kAligned>
__device__ __forceinline__ void ScaleRow(const float* x, float scale, const float* weight, float* y,
                                         int64_t n) {
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < n; i += Rows::kSize * 4) {
    const float4 v = LoadRow4<kAligned>(x, i, n), w = LoadRow4<kAligned>(weight, i, n);
    StoreRow4<kAligned>(
        y, i, n, {v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w});
  }
}

template <bool kWholeBlock, bool kAligned>
__global__ void __launch_bounds__(kThreads) RmsNormKernel(kernels::RmsNormParams p) {
  using Rows = Team<kWholeBlock>;
  const int64_t row = Rows::Row();
  if (row >= p.m) return;
  const float* x = p.x + row * p.ldx;
  const double squares = RowSquares<Rows, kAligned>(x, p.n);
  const auto scale = static_cast<float>(1.0 / sqrt(squares / static_cast<double>(p.n) + p.eps));
  ScaleRow<Rows, kAligned>(x, scale, p.weight, p.y + row * p.ldy, p.n);
}

template <bool kWholeBlock, bool kAligned>
__global__ void __launch_bounds__(kThreads) SumSquaresKernel(kernels::SumSquaresParams p) {
  using Rows = Team<kWholeBlock>;
  const int64_t row = Rows::Row();
  if (row >= p.m) return;
  const double squares = RowSquares<Rows, kAligned>(p.x + row * p.n, p.n);
  if (Rows::Rank() == 0) p.squares[row] = static_cast<float>(squares);
}

template <bool kWholeBlock, bool kAligned>
__global__ void __launch_bounds__(kThreads) ScaleBySquaresKernel(kernels::ScaleBySquaresParams p) {
  using Rows = Team<kWholeBlock>;
  const int64_t row = Rows::Row();
  if (row >= p.m) return;
  const double mean = double{p.squares[row]} / static_cast<double>(p.total);
  const auto scale = static_cast<float>(1.0 / sqrt(mean + p.eps));
  float* x = p.x + row * p.n;
  ScaleRow<Rows, kAligned>(x, scale, p.weight, x, p.n);
}

// Starts the variant for rows of n elements.
#define SWITCHYARD_LAUNCH_ROWS(KERNEL, P, ALIGNED, STREAM)                                \
  do {                                                                                    \
    const bool whole = (P).n > kWarpRow;                                                  \
    const auto kernel = whole ? ((ALIGNED) ? KERNEL<true, true> : KERNEL<true, false>)    \
                              : ((ALIGNED) ? KERNEL<false, true> : KERNEL<false, false>); \
    const int64_t blocks =                                                                \
        CeilDiv((P).m, whole ? Team<true>::kRowsPerBlock : Team<false>::kRowsPerBlock);   \
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, STREAM>>>(P);                    \
  } while (false)

}  // namespace

cudaError_t RmsNorm(const kernels::RmsNormParams& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  const bool aligned =
      RowsAligned(p.x, p.ldx, p.n) && RowsAligned(p.y, p.ldy, p.n) && Aligned16(p.weight);
  SWITCHYARD_LAUNCH_ROWS(RmsNormKernel, p, aligned, stream);
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
