// Row norms: shared reductions. The partition of a row's sum depends on its length alone: short
// rows (heads) use one warp, others a block. Sums are in double, as on the CPU.
#pragma once

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/elementwise/ops_elements.cuh"

namespace switchyard::cuda::ops {

constexpr int kNormThreads = 512;
constexpr int64_t kWarpRow = 1024;  // longest row handled by one warp

// The threads that share a row: a warp or a block.
template <bool kWholeBlock>
struct RowThreads {
  static constexpr int kSize = kWholeBlock ? kNormThreads : kWarp;
  static constexpr int kRowsPerBlock = kNormThreads / kSize;
  static __device__ int Rank() { return threadIdx.x % kSize; }
  static __device__ int64_t Row() {
    return int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kSize;
  }
  static __device__ double Sum(double value) {
    value = WarpSum(value);
    if constexpr (kWholeBlock) {
      __shared__ double parts[kNormThreads / kWarp];
      if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
      __syncthreads();
      value = 0;
      for (const double part : parts) value += part;
    }
    return value;
  }
};

// The square of a float is exact in double.
__device__ __forceinline__ double SquaresOf(float4 v) {
  return (double{v.x} * v.x + double{v.y} * v.y) + (double{v.z} * v.z + double{v.w} * v.w);
}

__device__ __forceinline__ float ScaleOf(double squares, int64_t n, float eps) {
  return static_cast<float>(1.0 / sqrt(squares / static_cast<double>(n) + eps));
}
__device__ __forceinline__ float4 Scaled(float4 v, float scale, float4 w) {
  return {v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w};
}

template <typename Rows, bool kAligned>
__device__ __forceinline__ double RowSquares(const float* x, int64_t n) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < n; i += Rows::kSize * 4) {
    sum += SquaresOf(LoadRow4<kAligned>(x, i, n));
  }
  return Rows::Sum(sum);
}

template <typename Rows, bool kAligned>
__device__ __forceinline__ double RowSum(const float* x, int64_t n) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < n; i += Rows::kSize * 4) {
    const float4 v = LoadRow4<kAligned>(x, i, n);
    sum += (double{v.x} + v.y) + (double{v.z} + v.w);
  }
  return Rows::Sum(sum);
}

// The sum of (x[i] - mean)². fma is explicit, so that all variants of a kernel have the same bits.
template <typename Rows, bool kAligned>
__device__ __forceinline__ double RowDeviations(const float* x, double mean, int64_t n) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < n; i += Rows::kSize * 4) {
    const float4 v = LoadRow4<kAligned>(x, i, n);
    // LoadRow4 gives zeros past the end of the row; they are not elements.
    const double a = v.x - mean, b = kAligned || i + 1 < n ? v.y - mean : 0;
    const double c = kAligned || i + 2 < n ? v.z - mean : 0;
    const double d = kAligned || i + 3 < n ? v.w - mean : 0;
    sum = fma(d, d, fma(c, c, fma(b, b, fma(a, a, sum))));
  }
  return Rows::Sum(sum);
}

template <typename Rows, bool kAligned>
__device__ __forceinline__ void ScaleRow(const float* x, float scale, const float* weight, float* y,
                                         int64_t n) {
#pragma unroll 4
  for (int64_t i = Rows::Rank() * 4; i < n; i += Rows::kSize * 4) {
    const float4 v = LoadRow4<kAligned>(x, i, n), w = LoadRow4<kAligned>(weight, i, n);
    StoreRow4<kAligned>(y, i, n, Scaled(v, scale, w));
  }
}

}  // namespace switchyard::cuda::ops
