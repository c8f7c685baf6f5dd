// Shapes of tiles of attention with matrix units, and where their parts lie in shared memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace switchyard::cuda {

// A block's shape: kRowGroups · kColumnWarps warps, each with 16 rows, and of those with a
// kColumnWarps-th of the keys in q · kᵀ and of the columns in p · v. With kHopper the four warps of
// the same columns are a warpgroup, multiply by wgmma and score all keys of their rows. wgmma
// leaves sums where mma.sync does and, on an H200, in the same bits (measured on products of K to
// 4096; tests have the same rows in tiles of both kinds).
template <int kQkDim_, int kVDim_, bool kLatent_, int kSplitKeys_, int kRowGroups_,
          int kColumnWarps_, int kStages_, bool kHopper_ = false>
struct TileShape {
  static constexpr int kQkDim = kQkDim_, kVDim = kVDim_;
  static constexpr bool kLatent = kLatent_;  // values are a part of keys
  static constexpr int kSplitKeys = kSplitKeys_;
  static constexpr int kRowGroups = kRowGroups_, kColumnWarps = kColumnWarps_;
  static constexpr int kStages = kStages_;
  static constexpr bool kHopper = kHopper_;

  static constexpr int kKeys = 64;  // of a block of keys
  static constexpr int kRows = 16 * kRowGroups;
  static constexpr int kThreads = 32 * kRowGroups * kColumnWarps;
  static constexpr int kWarpKeys = kHopper ? kKeys : kKeys / kColumnWarps;
  static constexpr int kWarpColumns = kVDim / kColumnWarps;

  // Shared memory, in bytes. Tiles are cut into panels of 128 bytes of every row (PieceAt).
  static constexpr int kQBytes = kRows * kQkDim * 2;
  static constexpr int kKBytes = kKeys * kQkDim * 2;
  static constexpr int kStageBytes = kKBytes + (kLatent ? 0 : kKeys * kVDim * 2);
  // Warps of the same rows tell one another maxima and probabilities.
  static constexpr bool kShares = !kHopper && kColumnWarps > 1;
  static constexpr int kPBytes = kShares ? kRows * kKeys * 2 : 0;
  static constexpr int kOnesBytes = kHopper ? 384 : 0;
  static constexpr int kMaxBytes = kShares ? kColumnWarps * kRows * 4 : 0;
  static constexpr int kPAt = kQBytes + kStages * kStageBytes, kOnesAt = kPAt + kPBytes;
  static constexpr int kMaxAt = kOnesAt + kOnesBytes, kUnitAt = kMaxAt + kMaxBytes;
  static constexpr int kSlotsAt = kUnitAt + 32, kSlotsBytes = kStages * kKeys * 4;
  static constexpr int kBytes = kSlotsAt + kSlotsBytes;

  static_assert(kSplitKeys % kKeys == 0 && kWarpKeys % 8 == 0 && kWarpColumns % 16 == 0);
  static_assert(kQkDim % 64 == 0 && kVDim % 64 == 0);
  static_assert(!kHopper || kRowGroups % 4 == 0);
};

// Byte of 16-byte piece `piece` of a row in a tile of kRows rows. In a panel pieces are permuted by
// row, so that eight rows of a matrix lie in different banks: the copy engine's 128-byte swizzle.
template <int kRows>
__device__ __forceinline__ uint32_t PieceAt(int row, int piece) {
  return piece / 8 * (kRows * 128) + row * 128 + ((piece % 8 ^ (row & 7)) << 4);
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// A thread's place in a block.
template <typename Shape>
struct TileThread {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int row0 = 0;         // first of the warp's 16 rows
  int column_warp = 0;  // which of those that share these rows

  __device__ TileThread() {
    if constexpr (Shape::kHopper) {
      row0 = (warp / 4 / Shape::kColumnWarps * 4 + warp % 4) * 16;
      column_warp = warp / 4 % Shape::kColumnWarps;
    } else {
      row0 = warp / Shape::kColumnWarps * 16;
      column_warp = warp % Shape::kColumnWarps;
    }
  }
  // The lane's two rows of sums.
  __device__ int RowOf(int i) const { return row0 + lane / 4 + 8 * i; }
  __device__ int FirstKey() const { return Shape::kHopper ? 0 : column_warp * Shape::kWarpKeys; }
};

}  // namespace switchyard::cuda
