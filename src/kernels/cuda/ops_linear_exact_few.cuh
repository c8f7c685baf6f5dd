// float32 GEMM for few outputs: a block of 512 threads computes 8 × 16 outputs. Four groups of 128
// threads take one chain of K each (split-K inside the block). Grid: x along tiles of 16 outputs, y
// along tiles of 8 rows, z along heads.
#pragma once

#include "kernels/cuda/ops_elements.cuh"
#include "kernels/cuda/ops_linear_exact.cuh"

namespace switchyard::cuda::ops {

constexpr int kFewM = 8, kFewN = 16, kFewK = 128, kGroups = 4;
constexpr int kGroupThreads = kFewM * kFewN, kFewThreads = kGroups * kGroupThreads;
constexpr int kFewRuns = kFewK / 4;
static_assert(kChain % kFewK == 0);

template <WeightFormat kFormat, bool kAligned>
__global__ void __launch_bounds__(kFewThreads)
    FewOutputsKernel(const __grid_constant__ LinearLaunch p) {
  // Groups of four elements are permuted within eight groups by row number, to avoid bank
  // conflicts.
  __shared__ float4 shared_w[kGroups][kFewN][kFewRuns], shared_x[kGroups][kFewM][kFewRuns];
  float(*chains)[kGroupThreads] = reinterpret_cast<float(*)[kGroupThreads]>(shared_x);
  constexpr int kLoadsW = kFewN * kFewRuns / kGroupThreads;
  constexpr int kLoadsX = kFewM * kFewRuns / kGroupThreads;
  const int head = blockIdx.z, group = threadIdx.x / kGroupThreads;
  const int thread = threadIdx.x % kGroupThreads;
  const WeightArg& w = p.weights[head];
  const float* x = p.x + head * p.head_stride_x;
  const int64_t first_column = int64_t{blockIdx.x} * kFewN, first_row = int64_t{blockIdx.y} * kFewM;
  const int64_t k_end = p.shape.k;
  const int row = thread / kFewN, column = thread % kFewN;
  const bool busy = first_row + row < p.m;
  float4 next_w[kLoadsW], next_x[kLoadsX];
  const auto load = [&](int64_t k) {
#pragma unroll
    for (int i = 0; i < kLoadsW; ++i) {
      const int run = thread + i * kGroupThreads;
      next_w[i] = LoadWeight4<kFormat, kAligned>(w, p.shape, first_column + run / kFewRuns,
                                                 k + run % kFewRuns * 4);
    }
#pragma unroll
    for (int i = 0; i < kLoadsX; ++i) {
      const int run = thread + i * kGroupThreads;
      const int64_t at = first_row + run / kFewRuns;
      next_x[i] = at < p.m ? LoadRow4<kAligned>(x + at * p.ldx, k + run % kFewRuns * 4, k_end)
                           : float4{0, 0, 0, 0};
    }
  };
  const auto put = [&] {
#pragma unroll
    for (int i = 0; i < kLoadsW; ++i) {
      const int run = thread + i * kGroupThreads, at = run / kFewRuns;
      shared_w[group][at][run % kFewRuns ^ (at & 7)] = next_w[i];
    }
#pragma unroll
    for (int i = 0; i < kLoadsX; ++i) {
      const int run = thread + i * kGroupThreads;
      shared_x[group][run / kFewRuns][run % kFewRuns] = next_x[i];
    }
  };
  // Step s of a group covers columns [k_of(s), k_of(s) + kFewK).
  constexpr int kStepsOfChain = kChain / kFewK;
  const int64_t rounds = (k_end + kGroups * kChain - 1) / (kGroups * kChain);
  const auto k_of = [&](int64_t step) {
    return (step / kStepsOfChain * kGroups + group) * kChain + step % kStepsOfChain * kFewK;
  };
  float total = 0, sum = 0;
  load(k_of(0));
  for (int64_t step = 0; step < rounds * kStepsOfChain; ++step) {
    __syncthreads();
    put();
    __syncthreads();
    if (step + 1 < rounds * kStepsOfChain) load(k_of(step + 1));
    // Threads whose row does not exist skip the loop, because reads of shared memory are the
    // bottleneck.
    const int runs = busy ? kFewRuns : 0;
#pragma unroll 8
    for (int i = 0; i < runs; ++i) {
      const float4 a = shared_x[group][row][i];
      const float4 b = shared_w[group][column][i ^ (column & 7)];
      sum = fmaf(a.x, b.x, sum);
      sum = fmaf(a.y, b.y, sum);
      sum = fmaf(a.z, b.z, sum);
      sum = fmaf(a.w, b.w, sum);
    }
    if (step % kStepsOfChain != kStepsOfChain - 1) continue;
    __syncthreads();
    chains[group][thread] = sum;
    sum = 0;
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) total += chains[g][thread];
    }
  }
  if (group == 0) OutputOf(p, head).Put(first_row + row, first_column + column, total);
}

}  // namespace switchyard::cuda::ops
