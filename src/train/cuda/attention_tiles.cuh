// Tiles of attention in shared memory and their products with mma.sync, for the forward and the
// backward kernels. Fragments of a warp: rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and
// the next one of each group of eight (PTX ISA, mma.m16n8k16).
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/device/ptx.cuh"
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

// A tile of rows of kDim bfloat16 in shared memory. The 16-byte pieces of each 128 bytes are
// permuted by the row, so that eight rows of a piece are in different banks.
template <int kDim>
struct TileLayout {
  static constexpr int kRowBytes = kDim * 2, kPieces = kDim / 8;
  static constexpr int Bytes(int rows) { return rows * kRowBytes; }
  static __device__ __forceinline__ uint32_t Offset(int row, int piece) {
    return static_cast<uint32_t>(row * kRowBytes + ((piece & ~7) | ((piece ^ row) & 7)) * 16);
  }
};

// Begins to copy rows [first, first + kRows) of a head to shared memory; rows from `end` on become
// zero.
template <int kDim, int kRows>
__device__ __forceinline__ void CopyTile(uint32_t to, const HeadView& from, int first, int end) {
  using Layout = TileLayout<kDim>;
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

// sums [16, kColumns] += A · Bᵀ: rows [row, row + 16) of tile A, and kColumns rows of tile B; the
// inner dimension kDim runs along both.
template <int kDim, int kColumns>
__device__ __forceinline__ void MultiplyRows(uint32_t a, int row, uint32_t b,
                                             float (&sums)[kColumns / 8][4]) {
  using Layout = TileLayout<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t left[4];
    ptx::LoadMatrices(left, a + Layout::Offset(row + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      uint32_t right[4];
      ptx::LoadMatrices(right,
                        b + Layout::Offset(n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      ptx::MmaBf16(sums[n / 8], left, right[0], right[1]);
      ptx::MmaBf16(sums[n / 8 + 1], left, right[2], right[3]);
    }
  }
}

// sums [16, kDim] += P · B: P [16, kRows] in registers, rounded to bfloat16; tile B [kRows, kDim].
template <int kDim, int kRows>
__device__ __forceinline__ void MultiplyFragments(const float (&p)[kRows / 8][4], uint32_t b,
                                                  float (&sums)[kDim / 8][4]) {
  using Layout = TileLayout<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) {
    const float *x = p[2 * k], *y = p[2 * k + 1];
    const uint32_t left[4] = {PackPair(x[0], x[1]), PackPair(x[2], x[3]), PackPair(y[0], y[1]),
                              PackPair(y[2], y[3])};
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t right[4];
      ptx::LoadMatricesTransposed(right, b + Layout::Offset(16 * k + lane % 16, n + lane / 16));
      ptx::MmaBf16(sums[n], left, right[0], right[1]);
      ptx::MmaBf16(sums[n + 1], left, right[2], right[3]);
    }
  }
}

template <int kCount>
__device__ __forceinline__ void Clear(float (&sums)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = 0;
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
void CheckAttention(const AttentionShape& shape);

}  // namespace switchyard::train::gpu
