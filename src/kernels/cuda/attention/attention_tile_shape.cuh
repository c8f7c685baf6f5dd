// Tile shapes of tensor core attention and their shared memory layout.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/attention_schedule.cuh"
#include "kernels/cuda/attention/key_codes.cuh"

namespace switchyard::cuda {

// A block has kRowGroups · kColumnWarps warps with 16 query rows each. The kColumnWarps warps of
// the same rows partition the keys in q · kᵀ and the columns in p · v. With kHopper every four
// warps of the same columns form a warpgroup, use wgmma, and score all keys of their rows. wgmma
// has mma.sync's accumulator layout. On an H200 its results are bit-identical too: measured up to K
// = 4096, and tests compare rows of wgmma and mma.sync tiles.
//
// With kCodes the cache has e4m3 codes, which are copied in stages. Products have the bits of a
// bfloat16 cache with the same values. Tiles of 16 rows use each code once or twice: their warps
// convert codes in registers (kDirect). In other tiles, many warps use a code: all threads convert
// a stage to one tile of bfloat16 first.
template <int kQkDim_, int kVDim_, bool kLatent_, int kRowGroups_, int kColumnWarps_, int kStages_,
          bool kHopper_ = false, bool kCodes_ = false>
struct TileShape {
  static constexpr int kQkDim = kQkDim_, kVDim = kVDim_;
  static constexpr bool kLatent = kLatent_;  // values are a prefix of the keys
  static constexpr KeySplits kSplits = kLatent
                                           ? KeySplits{.fine = 10, .fine_end = 0, .coarse = 10}
                                           : KeySplits{.fine = 8, .fine_end = 4096, .coarse = 9};
  static constexpr int kRowGroups = kRowGroups_, kColumnWarps = kColumnWarps_;
  static constexpr int kStages = kStages_;
  static constexpr bool kHopper = kHopper_;
  static constexpr bool kCodes = kCodes_;
  static constexpr bool kDirect = kCodes && kRowGroups == 1;

  static constexpr int kKeys = 64;  // keys per block of keys
  static constexpr int kRows = 16 * kRowGroups;
  static constexpr int kThreads = 32 * kRowGroups * kColumnWarps;
  static constexpr int kWarpKeys = kHopper ? kKeys : kKeys / kColumnWarps;
  static constexpr int kWarpColumns = kVDim / kColumnWarps;

  // Shared memory, in bytes. Tiles are partitioned into panels with 128 bytes of every row
  // (SwizzledOffset). With codes, kCodeBytes are those of a stage, and kStageBytes of the tile.
  static constexpr int kQBytes = kRows * kQkDim * 2;
  static constexpr int kKBytes = kKeys * kQkDim * 2;
  static constexpr int kStageBytes = kKBytes + (kLatent ? 0 : kKeys * kVDim * 2);
  static constexpr int kCodeBytes = kStageBytes / 2;
  // Warps of the same rows exchange maxima and probabilities through shared memory.
  static constexpr bool kShares = !kHopper && kColumnWarps > 1;
  static constexpr int kPBytes = kShares ? kRows * kKeys * 2 : 0;
  static constexpr int kOnesBytes = kHopper ? 384 : 0;
  static constexpr int kMaxBytes = kShares ? kColumnWarps * kRows * 4 : 0;
  static constexpr int kCodesAt = kQBytes + (kDirect ? 0 : kStageBytes);
  static constexpr int kPAt =
      kCodes ? kCodesAt + kStages * kCodeBytes : kQBytes + kStages * kStageBytes;
  static constexpr int kOnesAt = kPAt + kPBytes;
  static constexpr int kMaxAt = kOnesAt + kOnesBytes, kUnitAt = kMaxAt + kMaxBytes;
  static constexpr int kSlotsAt = kUnitAt + 32, kSlotsBytes = kStages * kKeys * 4;
  static constexpr int kBytes = kSlotsAt + kSlotsBytes;

  static_assert((1 << kSplits.fine) % kKeys == 0 && (1 << kSplits.coarse) % kKeys == 0);
  static_assert(kSplits.fine_end % (1 << kSplits.fine) == 0);
  static_assert(kWarpKeys % 8 == 0 && kWarpColumns % 16 == 0);
  static_assert(kQkDim % 64 == 0 && kVDim % 64 == 0 && kVDim <= kQkDim);
  static_assert(!kHopper || kRowGroups % 4 == 0);
};

// Byte offset of 16 codes, the `piece`-th of a row of kDim codes, in a stage of rows. Pieces are
// permuted by row, so that those at one column of eight rows are in different banks.
template <int kDim>
__device__ __forceinline__ int SwizzledCodes(int row, int piece) {
  static_assert(kDim % 64 == 0);
  return row * kDim + (piece ^ (kDim % 128 == 0 ? row & 7 : row >> 1 & 3)) * 16;
}

// Byte offset of 16-byte chunk `piece` of a row in a tile of kRows rows. Chunks of a panel are
// permuted by row to avoid bank conflicts between eight rows of a matrix: TMA's 128-byte swizzle.
template <int kRows>
__device__ __forceinline__ uint32_t SwizzledOffset(int row, int piece) {
  return piece / 8 * (kRows * 128) + row * 128 + ((piece % 8 ^ (row & 7)) << 4);
}

// Stores 16 elements of a row of a tile in bfloat16, the `piece`-th, from their codes. In each of
// the two stores, eight threads with successive pieces write to different banks.
template <int kRows>
__device__ __forceinline__ void StoreCodes(char* tile, int row, int piece, uint4 codes) {
  const uint2 a = Bf16OfCodes(codes.x), b = Bf16OfCodes(codes.y);
  const uint2 c = Bf16OfCodes(codes.z), d = Bf16OfCodes(codes.w);
  const uint4 low = {a.x, a.y, b.x, b.y}, high = {c.x, c.y, d.x, d.y};
  const int second = piece / 4 % 2;  // 1: the upper half is stored first
  *reinterpret_cast<uint4*>(tile + SwizzledOffset<kRows>(row, 2 * piece + second)) =
      second ? high : low;
  *reinterpret_cast<uint4*>(tile + SwizzledOffset<kRows>(row, 2 * piece + 1 - second)) =
      second ? low : high;
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// A thread's position in a block.
template <typename Shape>
struct TileThread {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int row0 = 0;         // first of the warp's 16 rows
  int column_warp = 0;  // index among the warps of these rows

  __device__ TileThread() {
    if constexpr (Shape::kHopper) {
      row0 = (warp / 4 / Shape::kColumnWarps * 4 + warp % 4) * 16;
      column_warp = warp / 4 % Shape::kColumnWarps;
    } else {
      row0 = warp / Shape::kColumnWarps * 16;
      column_warp = warp % Shape::kColumnWarps;
    }
  }
  // The lane's two accumulator rows.
  __device__ int RowOf(int i) const { return row0 + lane / 4 + 8 * i; }
  __device__ int FirstKey() const { return Shape::kHopper ? 0 : column_warp * Shape::kWarpKeys; }
};

}  // namespace switchyard::cuda
