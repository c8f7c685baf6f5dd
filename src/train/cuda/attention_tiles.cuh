// Tiles of attention in shared memory and their products with mma.sync, for the forward and the
// backward kernels. Fragments of a warp: rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and
// the next one of each group of eight (PTX ISA, mma.m16n8k16).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "train/cuda/attention.h"
#include "train/cuda/launch.cuh"

namespace switchyard::train::gpu {

namespace ptx = switchyard::cuda::ptx;

constexpr int kAttentionThreads = 128;  // four warps
constexpr int kTileRows = 64;           // rows of the tile that a block owns: 16 per warp
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Rows of one head in memory.
struct HeadView {
  const uint16_t* data;
  int64_t row;  // stride in elements
};
__device__ __forceinline__ HeadView ViewOf(const HeadArray& a, int64_t head, int64_t begin) {
  return {static_cast<const uint16_t*>(a.data.data) + head * a.head + begin * a.row, a.row};
}

// A tile [kRows, kDim] of bfloat16 in shared memory, aligned to 1024 bytes: panels of 64 columns. A
// panel has rows of 128 bytes, whose 16-byte pieces are permuted by the row (TMA's 128-byte
// swizzle).
template <int kDim, int kRows>
struct TileLayout {
  static constexpr int kPieces = kDim / 8, kPanelBytes = kRows * 128, kBytes = kRows * kDim * 2;
  static __device__ __forceinline__ uint32_t Offset(int row, int piece) {
    return static_cast<uint32_t>(piece / 8 * kPanelBytes + row * 128 + ((piece ^ row) & 7) * 16);
  }
};

// Begins to copy rows [first, first + kRows) of a head to shared memory; rows from `end` on become
// zero.
template <int kDim, int kRows>
__device__ __forceinline__ void CopyTile(uint32_t to, const HeadView& from, int first, int end) {
  using Layout = TileLayout<kDim, kRows>;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * Layout::kPieces; i += kAttentionThreads) {
    const int row = i / Layout::kPieces, piece = i % Layout::kPieces;
    const bool real = first + row < end;
    const uint16_t* at = from.data + (real ? (first + row) * from.row + piece * 8 : 0);
    ptx::CopyAsync16(to + Layout::Offset(row, piece), at, real);
  }
}
// The same for kRows floats.
template <int kRows>
__device__ __forceinline__ void CopyFloats(float* to, const float* from, int first, int end) {
  const int row = static_cast<int>(threadIdx.x);
  if (row < kRows) to[row] = first + row < end ? from[first + row] : 0.0f;
}

// Waits until copies of all threads to the earlier of two stages are visible.
template <bool kHopper>
__device__ __forceinline__ void AwaitStage() {
  ptx::WaitCopies<1>();
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (kHopper) ptx::FenceAsyncProxy();
#endif
  __syncthreads();
}

// wgmma takes sums as one array.
template <int kGroups>
__device__ __forceinline__ float (&Flat(float (&sums)[kGroups][4]))[kGroups * 4] {
  return reinterpret_cast<float(&)[kGroups * 4]>(sums);
}
// The low word of a wgmma descriptor holds the address; kLeadingBytes: see products_wgmma.cu.
template <int kLeadingBytes>
__device__ __forceinline__ uint64_t DescriptorOf(uint32_t tile) {
  return ptx::MatrixDescriptorOf((tile >> 4 & 0x3fff) | uint32_t{kLeadingBytes >> 4} << 16);
}

template <int kCount>
__device__ __forceinline__ void Clear(float (&sums)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = 0;
}
// Clears the sums of the products of rows that follow.
template <bool kHopper, int... kGroups>
__device__ __forceinline__ void ClearAll(float (&... sums)[kGroups][4]) {
  (Clear(sums), ...);
  if constexpr (kHopper) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    (ptx::PinRegisters(Flat(sums)), ...);
    ptx::WgmmaFence();
#endif
  }
}

// sums [16, kColumns] += A · Bᵀ: the warp's rows [row, row + 16) of tile A, and all kColumns rows
// of tile B; the inner dimension kDim runs along both. With kHopper asynchronous: call it between
// ClearAll and Finish.
template <bool kHopper, int kDim, int kColumns>
__device__ __forceinline__ void MultiplyRows(uint32_t a, int row, uint32_t b,
                                             float (&sums)[kColumns / 8][4]) {
  using Left = TileLayout<kDim, kTileRows>;
  using Right = TileLayout<kDim, kColumns>;
  if constexpr (kHopper) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const uint64_t left = DescriptorOf<16>(a), right = DescriptorOf<16>(b);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint32_t a_at = k / 4 * Left::kPanelBytes + k % 4 * 32;
      const uint32_t b_at = k / 4 * Right::kPanelBytes + k % 4 * 32;
      ptx::WgmmaBf16(Flat(sums), left + a_at / 16, right + b_at / 16, true);
    }
    ptx::WgmmaCommit();
#endif
  } else {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t left[4];
      ptx::LoadMatrices(left, a + Left::Offset(row + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int n = 0; n < kColumns; n += 16) {
        uint32_t right[4];
        ptx::LoadMatrices(right,
                          b + Right::Offset(n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        ptx::MmaBf16(sums[n / 8], left, right[0], right[1]);
        ptx::MmaBf16(sums[n / 8 + 1], left, right[2], right[3]);
      }
    }
  }
}

// sums [16, kDim] += P · B: P [16, kRows] in registers, rounded to bfloat16; tile B [kRows, kDim].
// With kHopper asynchronous: Finish waits.
template <bool kHopper, int kDim, int kRows>
__device__ __forceinline__ void MultiplyFragments(const float (&p)[kRows / 8][4], uint32_t b,
                                                  float (&sums)[kDim / 8][4]) {
  using Right = TileLayout<kDim, kRows>;
  uint32_t left[kRows / 16][4];
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    const float *x = p[2 * k], *y = p[2 * k + 1];
    left[k][0] = PackPair(x[0], x[1]);
    left[k][1] = PackPair(x[2], x[3]);
    left[k][2] = PackPair(y[0], y[1]);
    left[k][3] = PackPair(y[2], y[3]);
  }
  if constexpr (kHopper) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const uint64_t right = DescriptorOf<Right::kPanelBytes>(b);
    // The fence must follow the instructions that write the operands of wgmma.
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(left[k][i])::"memory");
    ptx::PinRegisters(Flat(sums));
    ptx::WgmmaFence();
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k)
      ptx::WgmmaBf16MnMajor(Flat(sums), left[k], right + k * 16 * 128 / 16, true);
    ptx::WgmmaCommit();
#endif
  } else {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        uint32_t right[4];
        ptx::LoadMatricesTransposed(right, b + Right::Offset(16 * k + lane % 16, n + lane / 16));
        ptx::MmaBf16(sums[n], left[k], right[0], right[1]);
        ptx::MmaBf16(sums[n + 1], left[k], right[2], right[3]);
      }
    }
  }
}

// Waits for the products that were started; `sums`: those of all of them.
template <bool kHopper, int... kGroups>
__device__ __forceinline__ void Finish(float (&... sums)[kGroups][4]) {
  if constexpr (kHopper) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    ptx::WgmmaWait<0>();
    (ptx::PinRegisters(Flat(sums)), ...);
#endif
  }
}

// Stores sums [16, kDim] of a warp, multiplied by a factor for each half of the rows, to rows from
// `row` on; rows from `end` on are not stored.
template <int kDim>
__device__ __forceinline__ void StoreSums(const MutableHeadArray& to, int64_t head, int64_t begin,
                                          int row, int end, const float (&sums)[kDim / 8][4],
                                          float first, float second) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  auto* data = static_cast<uint16_t*>(to.data.data) + head * to.head + begin * to.row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + lane / 4 + 8 * half;
    if (r >= end) continue;
    const float factor = half == 0 ? first : second;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      *reinterpret_cast<uint32_t*>(data + r * to.row + n * 8 + lane % 4 * 2) =
          PackPair(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
  }
}

// Whether a row attends to a key of its sequence.
__device__ __forceinline__ bool IsVisible(int row, int key, int window) {
  return key <= row && (window == 0 || row - key < window);
}
// Whether every row of [row, row + rows) attends to every key of [key, key + keys).
__device__ __forceinline__ bool AllVisible(int row, int rows, int key, int keys, int window) {
  return IsVisible(row, key + keys - 1, 0) && IsVisible(row + rows - 1, key, window);
}
// The first key that rows from `row` on attend to, rounded down to a multiple of kKeys.
template <int kKeys>
__device__ __forceinline__ int FirstKey(int row, int window) {
  return window > 0 ? max(0, row + 1 - window) / kKeys * kKeys : 0;
}

// Whether the tensor core kernels support these arrays; (qk_dim, v_dim) is one of their pairs.
bool UsesAttentionTiles(const AttentionShape& shape);
bool IsTileArray(const HeadArray& a);
// Whether the kernels of one warpgroup per block use wgmma on the current GPU.
bool UsesWgmma(const AttentionShape& shape);
// Whether the kernels of attention_hopper.cuh run on the current GPU, with arrays that
// HasTensorMap.
bool UsesHopperAttention(const AttentionShape& shape);
bool HasTensorMap(const HeadArray& a, int64_t heads, int64_t dim);
void CheckAttention(const AttentionShape& shape);

// The kernels of attention_hopper.cuh. `along` of the gradients is complete.
void StartHopperAttention(const AttentionShape& shape, const HeadArray& q, const HeadArray& k,
                          const HeadArray& v, const MutableHeadArray& out, float* log_sums,
                          Stream stream);
void StartHopperKeyGradient(const AttentionGradientParams& p, Stream stream);
void StartHopperQueryGradient(const AttentionGradientParams& p, Stream stream);

}  // namespace switchyard::train::gpu
