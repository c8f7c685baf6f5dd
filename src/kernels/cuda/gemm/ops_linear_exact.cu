// Problem: y_h = x_h · Wᵀ or x_h · W in float32 on any GPU, for weights of any format.
// Tiling: grid (column tiles, row tiles, heads). Blocks of 8 × 16 outputs for few outputs, tiles of
// 32 × 64 or 128 × 64 for many. An output is a sum of chains of 512 along K in both, so the bits
// are the same.
// Pipeline: a step along K is loaded to shared memory, then multiplied. With few outputs, four
// groups of threads take one chain each (split-K within the block).
// Measured: not measured. Source: the textbook tiled GEMM.
#include "kernels/cuda/elementwise/ops_elements.cuh"
#include "kernels/cuda/gemm/ops_linear.h"

namespace switchyard::cuda::ops {

// Reduction order and output store shared by the kernels of ops_linear_exact.cu.

// An output is the sum of chains of fused multiply-adds. Each chain covers kChain elements of K in
// order, and the chains are added in order. All tile sizes therefore give the same bits, and few
// outputs with a long K still use many threads.
constexpr int kChain = 512;

// Destination of the outputs.
struct Output {
  float* y;
  const float* bias;
  int64_t ldy, m, n;
  bool accumulate;

  __device__ __forceinline__ void Put(int64_t row, int64_t column, float value) const {
    if (row >= m || column >= n) return;
    if (bias != nullptr) value += bias[column];
    float& to = y[row * ldy + column];
    to = accumulate ? to + value : value;
  }
};

__device__ __forceinline__ Output OutputOf(const LinearLaunch& p, int head) {
  return {.y = p.y + head * p.head_stride_y,
          .bias = p.bias,
          .ldy = p.ldy,
          .m = p.m,
          .n = p.transposed ? p.shape.n : p.shape.k,
          .accumulate = p.accumulate};
}

// float32 GEMM for few outputs: a block of 512 threads computes 8 × 16 outputs. Four groups of 128
// threads take one chain of K each (split-K inside the block). Grid: x along tiles of 16 outputs, y
// along tiles of 8 rows, z along heads.

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

// float32 GEMM for many outputs. A block of 256 threads computes a tile of kM × 64 outputs, in
// steps of 16 along K. A thread has kM / 16 × 4 outputs.

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

namespace {

template <WeightFormat kFormat, bool kAligned>
cudaError_t Start(const LinearLaunch& p, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(p.heads);
  const auto blocks = [](int64_t count, int64_t tile) {
    return static_cast<unsigned>(CeilDiv(count, tile));
  };
  // Large tiles read less memory, but need enough outputs for one tile per SM.
  constexpr int64_t kEnoughTiles = 96;
  const int rows = p.m <= 32 ? 32 : 128;
  const dim3 grid(blocks(p.outputs(), kTileN), blocks(p.m, rows), heads);
  if (p.transposed && (p.m <= kFewM || int64_t{grid.x} * grid.y * heads < kEnoughTiles)) {
    const dim3 few_grid(blocks(p.shape.n, kFewN), blocks(p.m, kFewM), heads);
    FewOutputsKernel<kFormat, kAligned><<<few_grid, kFewThreads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  const auto kernel = p.transposed ? (rows == 32 ? TileKernel<kFormat, true, kAligned, 32>
                                                 : TileKernel<kFormat, true, kAligned, 128>)
                                   : (rows == 32 ? TileKernel<kFormat, false, kAligned, 32>
                                                 : TileKernel<kFormat, false, kAligned, 128>);
  kernel<<<grid, kTileThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <WeightFormat kFormat>
cudaError_t StartFormat(const LinearLaunch& p, cudaStream_t stream) {
  return CanVectorLoad(p, 4) ? Start<kFormat, true>(p, stream) : Start<kFormat, false>(p, stream);
}

}  // namespace

cudaError_t LinearExact(const LinearLaunch& p, cudaStream_t stream) {
  if (p.m == 0 || p.outputs() == 0 || p.heads == 0) return cudaSuccess;
  switch (p.shape.format) {
    case WeightFormat::kF32:
      return StartFormat<WeightFormat::kF32>(p, stream);
    case WeightFormat::kBF16:
      return StartFormat<WeightFormat::kBF16>(p, stream);
    case WeightFormat::kF16:
      return StartFormat<WeightFormat::kF16>(p, stream);
    case WeightFormat::kFp8Block:
      return StartFormat<WeightFormat::kFp8Block>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace switchyard::cuda::ops
