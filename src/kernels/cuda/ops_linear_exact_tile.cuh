// float32 GEMM for many outputs. A block of 256 threads computes a tile of kM × 64 outputs, in
// steps of 16 along K. A thread has kM / 16 × 4 outputs.
#pragma once

#include "kernels/cuda/ops_elements.cuh"
#include "kernels/cuda/ops_linear_exact.cuh"

namespace switchyard::cuda::ops {

constexpr int kTileN = 64, kTileK = 16, kTileThreads = 256;

template <WeightFormat kFormat, bool kTransposed, bool kAligned, int kM>
__global__ void __launch_bounds__(kTileThreads) TileKernel(const __grid_constant__ LinearLaunch p) {
  constexpr int kRows = kM / 16;  // rows of a thread
  constexpr int kRuns = kTileK / 4;
  constexpr int kLoadsX = (kM * kRuns + kTileThreads - 1) / kTileThreads;
  static_assert(kTileN * kRuns == kTileThreads);
  __shared__ float shared_x[kTileK][kM + 4];
  __shared__ float shared_w[kTileK][kTileN + 4];
  const int head = blockIdx.z, thread = threadIdx.x;
  const WeightArg& w = p.weights[head];
  const float* x = p.x + head * p.head_stride_x;
  const int64_t first_row = int64_t{blockIdx.y} * kM, first_column = int64_t{blockIdx.x} * kTileN;
  const int64_t k_end = kTransposed ? p.shape.k : p.shape.n;
  float4 next_w, next_x[kLoadsX];
  const auto load = [&](int64_t k) {
    if constexpr (kTransposed) {
      next_w = LoadWeight4<kFormat, kAligned>(w, p.shape, first_column + thread / kRuns,
                                              k + thread % kRuns * 4);
    } else {
      next_w = LoadWeight4<kFormat, kAligned>(w, p.shape, k + thread / (kTileN / 4),
                                              first_column + thread % (kTileN / 4) * 4);
    }
#pragma unroll
    for (int i = 0; i < kLoadsX; ++i) {
      const int run = thread + i * kTileThreads;
      const int64_t row = first_row + run / kRuns;
      next_x[i] = run / kRuns < kM && row < p.m
                      ? LoadRow4<kAligned>(x + row * p.ldx, k + run % kRuns * 4, k_end)
                      : float4{0, 0, 0, 0};
    }
  };
  const auto put = [&] {
    if constexpr (kTransposed) {
      const int column = thread / kRuns, k = thread % kRuns * 4;
      shared_w[k][column] = next_w.x, shared_w[k + 1][column] = next_w.y;
      shared_w[k + 2][column] = next_w.z, shared_w[k + 3][column] = next_w.w;
    } else {
      const int k = thread / (kTileN / 4), column = thread % (kTileN / 4) * 4;
      *reinterpret_cast<float4*>(&shared_w[k][column]) = next_w;
    }
#pragma unroll
    for (int i = 0; i < kLoadsX; ++i) {
      const int run = thread + i * kTileThreads, row = run / kRuns, k = run % kRuns * 4;
      if (row >= kM) continue;
      shared_x[k][row] = next_x[i].x, shared_x[k + 1][row] = next_x[i].y;
      shared_x[k + 2][row] = next_x[i].z, shared_x[k + 3][row] = next_x[i].w;
    }
  };
  const int row = thread / 16 * kRows, column = thread % 16 * 4;
  float sums[kRows][4] = {}, totals[kRows][4] = {};
  load(0);
  for (int64_t k0 = 0; k0 < k_end; k0 += kTileK) {
    __syncthreads();
    put();
    __syncthreads();
    if (k0 + kTileK < k_end) load(k0 + kTileK);
#pragma unroll
    for (int k = 0; k < kTileK; ++k) {
      const float4 b = *reinterpret_cast<const float4*>(&shared_w[k][column]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float a = shared_x[k][row + i];
        sums[i][0] = fmaf(a, b.x, sums[i][0]);
        sums[i][1] = fmaf(a, b.y, sums[i][1]);
        sums[i][2] = fmaf(a, b.z, sums[i][2]);
        sums[i][3] = fmaf(a, b.w, sums[i][3]);
      }
    }
    if (k0 % kChain != kChain - kTileK && k0 + kTileK < k_end) continue;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        totals[i][j] += sums[i][j];
        sums[i][j] = 0;
      }
    }
  }
  const Output out = OutputOf(p, head);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      out.Put(first_row + row + i, first_column + column + j, totals[i][j]);
  }
}

}  // namespace switchyard::cuda::ops
