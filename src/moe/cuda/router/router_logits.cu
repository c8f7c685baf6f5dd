// Problem: router logits y [m, n] = x [m, k] · W [n, k]ᵀ + bias at float32 precision with tensor
// cores (mma.sync m16n8k16): each float32 is split into three bfloat16 parts.
// Tiling: a block of kWarps warps computes 16 kRowTiles × 8 kColumnTiles logits. The warps split K,
// and their partial sums are added in order. Grid: (column tiles, row tiles).
// Pipeline: kBatch steps of K are in flight in registers. Weights are prefetched to L2 before the
// wait for prior kernels.
// Measured on one H200: 5.8 µs for 1 × 128 × 2048, 78 µs for 8192 rows; 115 µs for 8192 × 256 ×
// 7168.
#include "kernels/cuda/device/kernel_chain.cuh"
#include "moe/cuda/router/router_logits.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kWarps = router::kSlices;
constexpr int kThreads = kWarps * 32;

using router::FourOf;
using router::kStep;
using router::MultiplyStep;

// Computes a tile of 16 kRowTiles × 8 kColumnTiles logits, and loads kBatch steps at a time. Logits
// are bit-identical for all sizes of tiles and batches.
template <typename W, int kRowTiles, int kColumnTiles, int kBatch>
__global__ void __launch_bounds__(kThreads) LogitsKernel(const RouterLogitsParams p) {
  constexpr bool kExactWeights = sizeof(W) == 2;  // bfloat16 weights are exact in one part
  constexpr int kRows = 16 * kRowTiles, kColumns = 8 * kColumnTiles;
  extern __shared__ float partial[];  // [kWarps, kRows, kColumns]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / 4, quad = lane % 4;
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  const int first_column = blockIdx.x * kColumns;

  const float* x[kRowTiles][2];
  const W* w[kColumnTiles];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      x[i][h] = p.x + min(first_row + i * 16 + h * 8 + group, p.m - 1) * p.k;
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j)
    w[j] = static_cast<const W*>(p.w) + min(first_column + j * 8 + group, p.n - 1) * p.k;
  LaunchDependents();
  // No kernel writes the weights, so the block prefetches its weights to L2 before it waits for
  // prior kernels.
  constexpr int64_t kLine = 128 / sizeof(W);
  for (int row = first_column + warp; row < min(first_column + kColumns, p.n); row += kWarps) {
    const W* line = static_cast<const W*>(p.w) + row * p.k;
    for (int64_t k = lane * kLine; k < p.k; k += 32 * kLine) ptx::PrefetchToL2(line + k);
  }
  WaitForPriorKernels();

  float sums[kRowTiles][kColumnTiles][4] = {};
  const int64_t steps = (p.k + kStep - 1) / kStep;
  const int64_t begin = steps * warp / kWarps, end = steps * (warp + 1) / kWarps;
  for (int64_t first = begin; first < end; first += kBatch) {
    float4 x_fours[kBatch][kRowTiles][2];
    decltype(FourOf(w[0], 0)) w_fours[kBatch][kColumnTiles];
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      // Past the end of K, x is set to zero and w is any valid weight.
      const int64_t k = (first + s) * kStep + quad * 4;
      const bool exists = first + s < end && k < p.k;
      const int64_t at = exists ? k : 0;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) x_fours[s][i][h] = FourOf(x[i][h], at);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) w_fours[s][j] = FourOf(w[j], at);
    }
    __syncwarp();  // the compiler must not move the loads of the batch below this point
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      const bool exists = first + s < end && (first + s) * kStep + quad * 4 < p.k;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (!exists) x_fours[s][i][h] = {};
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) MultiplyStep<kExactWeights>(x_fours[s], w_fours[s], sums);
  }

#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = i * 16 + group + e / 2 * 8, column = j * 8 + quad * 2 + e % 2;
        partial[(warp * kRows + row) * kColumns + column] = sums[i][j][e];
      }
  __syncthreads();
  for (int at = threadIdx.x; at < kRows * kColumns; at += kThreads) {
    const int64_t row = first_row + at / kColumns;
    const int column = first_column + at % kColumns;
    if (row >= p.m || column >= p.n) continue;
    float sum = partial[at];
#pragma unroll
    for (int warp_of = 1; warp_of < kWarps; ++warp_of)
      sum += partial[warp_of * kRows * kColumns + at];
    p.y[row * p.n + column] = p.bias ? sum + p.bias[column] : sum;
  }
}

template <typename W, int kRowTiles, int kColumnTiles, int kBatch>
cudaError_t Start(const RouterLogitsParams& p, const PdlStream& chain) {
  constexpr int kRows = 16 * kRowTiles, kColumns = 8 * kColumnTiles;
  constexpr size_t kShared = kWarps * kRows * kColumns * sizeof(float);
  if constexpr (kShared > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(LogitsKernel<W, kRowTiles, kColumnTiles, kBatch>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
  }
  const dim3 grid((p.n + kColumns - 1) / kColumns,
                  static_cast<unsigned>((p.m + kRows - 1) / kRows));
  return LaunchWithPdl(LogitsKernel<W, kRowTiles, kColumnTiles, kBatch>, grid, kThreads, kShared,
                       chain, p);
}

template <typename W>
cudaError_t StartFor(const RouterLogitsParams& p, const PdlStream& chain) {
  // If there are few tokens, small tiles give many blocks. If there are many tokens, large tiles
  // read each element fewer times.
  if (p.m <= 64 || p.n <= 8) return Start<W, 1, 1, 8>(p, chain);
  if (p.m <= 256) return Start<W, 1, 2, 6>(p, chain);
  if (p.m <= 640) return Start<W, 1, 4, 4>(p, chain);
  return Start<W, 2, 8, 2>(p, chain);
}

}  // namespace

cudaError_t RouterLogits(const RouterLogitsParams& p, const PdlStream& chain) {
  if (p.m == 0) return cudaSuccess;
  if (p.k % 4 != 0 || (p.m + 15) / 16 > 65535) return cudaErrorInvalidValue;
  return p.w_is_bf16 ? StartFor<__nv_bfloat16>(p, chain) : StartFor<float>(p, chain);
}

}  // namespace switchyard::cuda
