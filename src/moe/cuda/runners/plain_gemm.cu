// Problem: grouped GEMM with float32 FMAs: d = a · bᵀ + bias per expert, without tensor cores.
// Tiling: a block computes a kTile × kTile tile of d, a thread kEach × kEach elements. Grid:
// (ceil(n / kTile), ceil(chunk rows / kTile)).
// Pipeline: none; kDepth elements of K at a time are loaded to shared memory, then multiplied.
// Measured: not measured.
#include <cuda_bf16.h>

#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/runners/plain_gemm.h"

namespace switchyard::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kTile = 64;   // rows and columns per block
constexpr int kDepth = 16;  // K elements per main-loop step
constexpr int kThreads = 256;
constexpr int kEach = 4;  // rows and columns per thread; a thread computes kEach × kEach elements

__device__ __forceinline__ float Load(const float* p) { return *p; }
__device__ __forceinline__ float Load(const Bf16* p) { return __bfloat162float(*p); }
__device__ __forceinline__ void Store(float* p, float x) { *p = x; }
__device__ __forceinline__ void Store(Bf16* p, float x) { *p = __float2bfloat16_rn(x); }

// Loads tile[k][i] = x[i, k] from rows of `stride` elements; zero beyond `rows` and `depth`.
template <typename T>
__device__ __forceinline__ void LoadTile(float (&tile)[kDepth][kTile + 1], const T* x,
                                         int64_t stride, int64_t rows, int64_t depth) {
#pragma unroll
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int row = i / kDepth, k = i % kDepth;
    tile[k][row] = row < rows && k < depth ? Load(x + row * stride + k) : 0.0f;
  }
}

template <typename A, typename B, typename D>
__global__ void __launch_bounds__(kThreads) PlainKernel(const PlainGemmParams p) {
  __shared__ float a_tile[kDepth][kTile + 1], b_tile[kDepth][kTile + 1];
  const int64_t row = int64_t{blockIdx.y} * kTile, column = int64_t{blockIdx.x} * kTile;
  const RowOrder& order = p.chunk.order;
  const int expert =
      order.block_groups ? order.block_groups[(p.chunk.first + row) / kGroupBlockRows] : 0;
  if (expert < 0) return;
  const int64_t end = order.block_groups
                          ? order.offsets[expert] + order.counts[expert] - p.chunk.first
                          : p.chunk.rows;
  const int64_t rows = end - row, columns = p.n - column;
  if (rows <= 0) return;

  const A* a = static_cast<const A*>(p.a) + row * p.k;
  const B* b = static_cast<const B*>(p.b) + (expert * p.n + column) * p.k;
  const int first_row = threadIdx.x / (kTile / kEach) * kEach;
  // The first column of the thread. Its other columns follow at strides of kTile / kEach.
  const int first_column = threadIdx.x % (kTile / kEach);
  float sums[kEach][kEach] = {};
  for (int64_t k = 0; k < p.k; k += kDepth) {
    LoadTile(a_tile, a + k, p.k, rows, p.k - k);
    LoadTile(b_tile, b + k, p.k, columns, p.k - k);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      float x[kEach], w[kEach];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        x[j] = a_tile[i][first_row + j];
        w[j] = b_tile[i][first_column + j * (kTile / kEach)];
      }
#pragma unroll
      for (int r = 0; r < kEach; ++r)
#pragma unroll
        for (int c = 0; c < kEach; ++c) sums[r][c] = fmaf(x[r], w[c], sums[r][c]);
    }
    __syncthreads();
  }
  D* d = static_cast<D*>(p.d) + row * p.n + column;
#pragma unroll
  for (int r = 0; r < kEach; ++r)
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const int i = first_row + r, j = first_column + c * (kTile / kEach);
      if (i >= rows || j >= columns) continue;
      const float bias = p.bias ? p.bias[expert * p.n + column + j] : 0.0f;
      Store(d + i * p.n + j, sums[r][c] + bias);
    }
}

}  // namespace

cudaError_t PlainGroupedGemm(const PlainGemmParams& p, cudaStream_t stream) {
  if (p.chunk.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.n + kTile - 1) / kTile),
                  static_cast<unsigned>((p.chunk.rows + kTile - 1) / kTile));
  const bool float_output = p.d_type == ElementType::kF32;
  if (p.a_type == ElementType::kBF16 && p.b_type == ElementType::kBF16) {
    float_output ? PlainKernel<Bf16, Bf16, float><<<grid, kThreads, 0, stream>>>(p)
                 : PlainKernel<Bf16, Bf16, Bf16><<<grid, kThreads, 0, stream>>>(p);
  } else if (p.a_type != ElementType::kF32 || !float_output) {
    return cudaErrorInvalidValue;
  } else if (p.b_type == ElementType::kBF16) {
    PlainKernel<float, Bf16, float><<<grid, kThreads, 0, stream>>>(p);
  } else {
    PlainKernel<float, float, float><<<grid, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
