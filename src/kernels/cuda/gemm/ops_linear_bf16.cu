// Problem: y_h = x_h · W_hᵀ or x_h · W_h in bfloat16 with mma.sync, for cases that gemm.h does not
// support: GPUs other than Hopper, and small per-head matrices.
// Tiling: grid (column tiles, row tiles, heads); tiles of a block:
//   up to 64 rows   16 rows × 64 columns, K step 128
//   up to 256 rows  64 rows × 64 columns, K step 64
//   more rows       128 rows × 128 columns, K step 32
// Every output is one chain of 16-wide steps along K, so all tile sizes give the same bits.
// Pipeline: shared memory is double-buffered.
// Measured: not measured alone. Source: the usual tiled GEMM with the fragments of mma.sync
// m16n8k16 (PTX ISA).
#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/elementwise/ops_elements.cuh"
#include "kernels/cuda/gemm/ops_linear.h"

namespace switchyard::cuda::ops {
namespace {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// A block computes kM × kN outputs in steps of kK along K, with kWarpsM × kWarpsN warps.
template <int kM_, int kN_, int kK_, int kWarpsM_, int kWarpsN_>
struct Size {
  static constexpr int kM = kM_, kN = kN_, kK = kK_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kThreads = kWarpsM * kWarpsN * kWarp;
  static constexpr int kRows = kM / kWarpsM, kColumns = kN / kWarpsN;  // of a warp's part
  static_assert(kRows % 16 == 0 && kColumns % 16 == 0 && kK % 16 == 0);
};
// Few rows: throughput depends on how much of W is in flight, so the K step is large.
using FewRows = Size<16, 64, 128, 1, 4>;
using SomeRows = Size<64, 64, 64, 2, 2>;
using ManyRows = Size<128, 128, 32, 4, 2>;

template <WeightFormat kFormat, bool kTransposed, bool kAligned, typename S>
struct Tile {
  // Padding by eight elements avoids bank conflicts between rows of a fragment.
  static constexpr int kPitchX = S::kK + 8;
  static constexpr int kPitchW = (kTransposed ? S::kK : S::kN) + 8;
  static constexpr int kRowsW = kTransposed ? S::kN : S::kK;
  static constexpr int kRunsX = S::kK / 8, kRunsW = (kTransposed ? S::kK : S::kN) / 8;
  static constexpr int kLoadsX = S::kM * kRunsX / S::kThreads;
  static constexpr int kLoadsW = kRowsW * kRunsW / S::kThreads;
  static constexpr int kStepsM = S::kRows / 16, kStepsN = S::kColumns / 8;
  static_assert(kLoadsX * S::kThreads == S::kM * kRunsX);
  static_assert(kLoadsW * S::kThreads == kRowsW * kRunsW);

  struct Shared {
    alignas(16) uint16_t x[S::kM][kPitchX];
    alignas(16) uint16_t w[kRowsW][kPitchW];
  };

  const LinearLaunch& p;
  const WeightArg& w;
  const float* x;
  int64_t first_row, first_column, depth;
  uint4 next_x[kLoadsX], next_w[kLoadsW];
  float sums[kStepsM][kStepsN][4];

  __device__ __forceinline__ void Load(int64_t k) {
#pragma unroll
    for (int i = 0; i < kLoadsX; ++i) {
      const int run = threadIdx.x + i * S::kThreads;
      const int64_t row = first_row + run / kRunsX, column = k + run % kRunsX * 8;
      next_x[i] = {0, 0, 0, 0};
      if (row >= p.m) continue;
      const uint2 low = ToBf16x4(LoadRow4<kAligned>(x + row * p.ldx, column, depth));
      const uint2 high = ToBf16x4(LoadRow4<kAligned>(x + row * p.ldx, column + 4, depth));
      next_x[i] = {low.x, low.y, high.x, high.y};
    }
#pragma unroll
    for (int i = 0; i < kLoadsW; ++i) {
      const int run = threadIdx.x + i * S::kThreads;
      const int64_t row = (kTransposed ? first_column : k) + run / kRunsW;
      const int64_t column = (kTransposed ? k : first_column) + run % kRunsW * 8;
      next_w[i] = LoadWeight8AsBf16<kFormat, kAligned>(w, p.shape, row, column);
    }
  }

  __device__ __forceinline__ void Put(Shared& shared) const {
#pragma unroll
    for (int i = 0; i < kLoadsX; ++i) {
      const int run = threadIdx.x + i * S::kThreads;
      *reinterpret_cast<uint4*>(&shared.x[run / kRunsX][run % kRunsX * 8]) = next_x[i];
    }
#pragma unroll
    for (int i = 0; i < kLoadsW; ++i) {
      const int run = threadIdx.x + i * S::kThreads;
      *reinterpret_cast<uint4*>(&shared.w[run / kRunsW][run % kRunsW * 8]) = next_w[i];
    }
  }

  // Accumulates 16 elements along K, from k on, for the warp's rows and columns.
  __device__ __forceinline__ void Multiply(const Shared& shared, int k) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int row = warp % S::kWarpsM * S::kRows, column = warp / S::kWarpsM * S::kColumns;
    uint32_t a[kStepsM][4];
#pragma unroll
    for (int i = 0; i < kStepsM; ++i) {
      ptx::LoadMatrices(a[i],
                        SharedAddress(&shared.x[row + i * 16 + lane % 16][k + lane / 16 * 8]));
    }
#pragma unroll
    for (int j = 0; j < kStepsN; j += 2) {
      const int n = column + j * 8;
      uint32_t b[4];
      if constexpr (kTransposed) {
        ptx::LoadMatrices(
            b, SharedAddress(&shared.w[n + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]));
      } else {
        ptx::LoadMatricesTransposed(b, SharedAddress(&shared.w[k + lane % 16][n + lane / 16 * 8]));
      }
#pragma unroll
      for (int i = 0; i < kStepsM; ++i) {
        ptx::MmaBf16(sums[i][j], a[i], b[0], b[1]);
        ptx::MmaBf16(sums[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }

  // Stores outputs (row, column) and (row, column + 1); column is even.
  __device__ __forceinline__ void Store(float* y, int64_t row, int64_t column, float2 v) const {
    const int64_t n = kTransposed ? p.shape.n : p.shape.k;
    if (row >= p.m || column >= n) return;
    float* to = y + row * p.ldy + column;
    const bool pair = column + 1 < n;
    if (p.bias != nullptr) {
      v.x += p.bias[column];
      if (pair) v.y += p.bias[column + 1];
    }
    if (p.accumulate) {
      v.x += to[0];
      if (pair) v.y += to[1];
    }
    if (pair && reinterpret_cast<uintptr_t>(to) % sizeof(float2) == 0) {
      *reinterpret_cast<float2*>(to) = v;
    } else {
      to[0] = v.x;
      if (pair) to[1] = v.y;
    }
  }

  __device__ __forceinline__ void StoreAll(float* y) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int i = 0; i < kStepsM; ++i) {
#pragma unroll
      for (int j = 0; j < kStepsN; ++j) {
        const int64_t row = first_row + warp % S::kWarpsM * S::kRows + i * 16 + lane / 4;
        const int64_t column =
            first_column + warp / S::kWarpsM * S::kColumns + j * 8 + lane % 4 * 2;
        Store(y, row, column, {sums[i][j][0], sums[i][j][1]});
        Store(y, row + 8, column, {sums[i][j][2], sums[i][j][3]});
      }
    }
  }
};

template <WeightFormat kFormat, bool kTransposed, bool kAligned, typename S>
__global__ void __launch_bounds__(S::kThreads, 512 / S::kThreads)
    MmaKernel(const __grid_constant__ LinearLaunch p) {
  using T = Tile<kFormat, kTransposed, kAligned, S>;
  __shared__ typename T::Shared shared[2];
  const int head = blockIdx.z;
  T tile = {.p = p,
            .w = p.weights[head],
            .x = p.x + head * p.head_stride_x,
            .first_row = int64_t{blockIdx.y} * S::kM,
            .first_column = int64_t{blockIdx.x} * S::kN,
            .depth = kTransposed ? p.shape.k : p.shape.n};
  tile.Load(0);
  tile.Put(shared[0]);
  for (int64_t k = 0, stage = 0; k < tile.depth; k += S::kK, stage ^= 1) {
    __syncthreads();
    const bool more = k + S::kK < tile.depth;
    if (more) tile.Load(k + S::kK);
#pragma unroll
    for (int step = 0; step < S::kK; step += 16) tile.Multiply(shared[stage], step);
    if (more) tile.Put(shared[stage ^ 1]);
  }
  tile.StoreAll(p.y + head * p.head_stride_y);
}

template <WeightFormat kFormat, bool kTransposed, bool kAligned, typename S>
cudaError_t StartSize(const LinearLaunch& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(p.outputs(), S::kN)),
                  static_cast<unsigned>(CeilDiv(p.m, S::kM)), static_cast<unsigned>(p.heads));
  MmaKernel<kFormat, kTransposed, kAligned, S><<<grid, S::kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <WeightFormat kFormat, bool kTransposed, bool kAligned>
cudaError_t Start(const LinearLaunch& p, cudaStream_t stream) {
  if (p.m <= 4 * FewRows::kM) return StartSize<kFormat, kTransposed, kAligned, FewRows>(p, stream);
  if (p.m <= 4 * SomeRows::kM)
    return StartSize<kFormat, kTransposed, kAligned, SomeRows>(p, stream);
  return StartSize<kFormat, kTransposed, kAligned, ManyRows>(p, stream);
}

template <WeightFormat kFormat>
cudaError_t StartFormat(const LinearLaunch& p, cudaStream_t stream) {
  if (CanVectorLoad(p, 8)) {
    return p.transposed ? Start<kFormat, true, true>(p, stream)
                        : Start<kFormat, false, true>(p, stream);
  }
  return p.transposed ? Start<kFormat, true, false>(p, stream)
                      : Start<kFormat, false, false>(p, stream);
}

}  // namespace

cudaError_t LinearBf16(const LinearLaunch& p, cudaStream_t stream) {
  if (p.m == 0 || p.outputs() == 0 || p.heads == 0) return cudaSuccess;
  switch (p.shape.format) {
    case WeightFormat::kBF16:
      return StartFormat<WeightFormat::kBF16>(p, stream);
    case WeightFormat::kFp8Block:
      return StartFormat<WeightFormat::kFp8Block>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace switchyard::cuda::ops
