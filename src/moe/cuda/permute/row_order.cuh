// Device functions of the counting sort that orders slots by expert.
#pragma once

#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/permute/expert_rows.h"

namespace switchyard::cuda::order {

constexpr int kOrderThreads = 512;
constexpr int kOrderWarps = kOrderThreads / 32;
constexpr int kWarpSlots = kOrderTile / kOrderWarps;  // consecutive slots per warp
constexpr int kOneBlockTiles = 4;                     // maximum tiles of the one-block path
static_assert(kOrderThreads >= kMaxLocalExperts);     // one thread per expert

// Slot i of all slots; it is in segment i / (tokens · k). If its row is past the end of the
// segment, the fields are −1.
struct Slot {
  int64_t at;  // index in ids and position; −1 if there is no such row
  int expert;  // local expert; −1 if the slot has none on this rank
};
__device__ __forceinline__ Slot SlotOf(const RowOrderParams& p, int64_t slots, int64_t i) {
  if (i >= slots) return {-1, -1};
  const auto in_segment = static_cast<uint32_t>(p.in.tokens) * p.k;
  const int segment = static_cast<uint32_t>(i) / in_segment;
  const uint32_t rest = static_cast<uint32_t>(i) - segment * in_segment;
  const int row = rest / p.k;
  if (p.in.counts && row >= p.in.counts[segment]) return {-1, -1};
  const int64_t at = segment * p.in.capacity * p.k + rest;
  // Bypasses L1: other blocks of this kernel may have written the ids (select_and_order.cu).
  return {at, __ldcg(p.ids + at)};
}

// Writes counts [experts], the number of slots per expert in the tile. `histogram`: [experts],
// scratch in shared memory.
static __device__ void CountTile(const RowOrderParams& p, int64_t slots, int64_t tile,
                                 int* histogram, int32_t* counts) {
  for (int e = threadIdx.x; e < p.experts; e += kOrderThreads) histogram[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < kOrderTile; i += kOrderThreads) {
    const Slot slot = SlotOf(p, slots, tile * kOrderTile + i);
    if (slot.expert >= 0) atomicAdd(&histogram[slot.expert], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < p.experts; e += kOrderThreads) counts[e] = histogram[e];
}

// First output row of each expert. Stored in shared memory.
struct Begins {
  int32_t of[kMaxLocalExperts + 1];
  alignas(16) int32_t warp_sums[kOrderWarps];
};

// Computes padded offsets by a scan of the row counts of all experts; each thread passes the count
// of one expert. Writes offsets and counts and returns the thread's offset. Synchronizes the block
// before it returns.
static __device__ int32_t ScanCounts(const RowOrderParams& p, int32_t count, Begins& begins) {
  const int e = threadIdx.x, lane = e % 32, warp = e / 32;
  const int32_t padded = (count + kGroupBlockRows - 1) / kGroupBlockRows * kGroupBlockRows;
  int32_t sum = padded;  // becomes the inclusive sum over experts
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int32_t below = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += below;
  }
  if (lane == 31) begins.warp_sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += begins.warp_sums[w];
  if (e < p.experts) {
    begins.of[e] = p.out.offsets[e] = sum - padded;
    if (e == p.experts - 1) begins.of[p.experts] = p.out.offsets[p.experts] = sum;
    p.out.counts[e] = count;
  }
  __syncthreads();
  return sum - padded;
}

// Writes the expert of each block of kGroupBlockRows output rows.
static __device__ void WriteBlockGroups(const RowOrderParams& p, const Begins& begins) {
  for (int64_t b = threadIdx.x; b < p.blocks; b += kOrderThreads) {
    const int64_t row = b * kGroupBlockRows;
    int low = 0, high = p.experts;  // finds the last expert that begins at or before `row`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (begins.of[middle] <= row ? low : high) = middle;
    }
    p.out.block_groups[b] = row < begins.of[p.experts] ? low : -1;
  }
}

// Replaces each count in [tiles, experts] by the first output row of the expert's slots in the
// tile.
static __device__ void ScanTiles(const RowOrderParams& p, int64_t tiles, int32_t* of_tiles) {
  __shared__ Begins begins;
  const int e = threadIdx.x;
  int32_t count = 0;
  if (e < p.experts) {
#pragma unroll 4
    for (int64_t t = 0; t < tiles; ++t) count += of_tiles[t * p.experts + e];
  }
  int32_t next = ScanCounts(p, count, begins);
  if (e < p.experts) {
    for (int64_t t = 0; t < tiles; ++t) {
      const int32_t here = of_tiles[t * p.experts + e];
      of_tiles[t * p.experts + e] = next;
      next += here;
    }
  }
  WriteBlockGroups(p, begins);
}

// Assigns a slot the next row of its expert. It follows the `taken` slots of the warp, and slots of
// the same expert in lower lanes.
__device__ __forceinline__ void PlaceSlot(const RowOrderParams& p, const Slot& slot, int first,
                                          int* taken) {
  const unsigned same = __match_any_sync(~0u, slot.expert);
  const int before = __popc(same & ((1u << threadIdx.x % 32) - 1));
  int row = -1;
  if (slot.expert >= 0) row = first + taken[slot.expert] + before;
  __syncwarp();
  if (slot.expert >= 0 && before == 0) taken[slot.expert] += __popc(same);
  __syncwarp();
  if (slot.at >= 0) p.out.position[slot.at] = row;
}

// Assigns rows to the slots of a tile. `next`: [kOrderWarps, experts] in shared memory. `begins`
// [experts]: the first output row of each expert in the tile.
static __device__ void PlaceTile(const RowOrderParams& p, int64_t slots, int64_t tile,
                                 const int32_t* begins, int* next) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = tile * kOrderTile + warp * kWarpSlots;
  for (int i = threadIdx.x; i < kOrderWarps * p.experts; i += kOrderThreads) next[i] = 0;
  __syncthreads();
  int* own = next + warp * p.experts;
  for (int i = lane; i < kWarpSlots; i += 32) {
    const Slot slot = SlotOf(p, slots, first + i);
    if (slot.expert >= 0) atomicAdd(&own[slot.expert], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < p.experts; e += kOrderThreads) {
    int sum = begins[e];
    for (int w = 0; w < kOrderWarps; ++w) {
      const int count = next[w * p.experts + e];
      next[w * p.experts + e] = sum;
      sum += count;
    }
  }
  __syncthreads();
  for (int i = lane; i < kWarpSlots; i += 32) PlaceSlot(p, SlotOf(p, slots, first + i), 0, own);
  __syncthreads();
}

// Orders all slots in one block if they fit in a single tile; needs no global scratch. `taken`:
// [kOrderWarps, experts] in shared memory. The slots are divided evenly over the warps.
static __device__ void OrderOneTile(const RowOrderParams& p, int64_t slots, int* taken) {
  constexpr int kPerLane = kWarpSlots / 32;
  __shared__ Begins begins;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int per_lane = static_cast<int>((slots + kOrderThreads - 1) / kOrderThreads);
  const int warps = static_cast<int>((slots + per_lane * 32 - 1) / (per_lane * 32));
  int* own = taken + warp * p.experts;
  Slot slot[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t at = int64_t{warp} * per_lane * 32 + i * 32 + lane;
    slot[i] = i < per_lane ? SlotOf(p, slots, at) : Slot{-1, -1};
  }
  for (int i = threadIdx.x; i < warps * p.experts; i += kOrderThreads) taken[i] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (slot[i].expert >= 0) atomicAdd(&own[slot[i].expert], 1);
  __syncthreads();
  int32_t count = 0;
  if (threadIdx.x < p.experts) {
    for (int w = 0; w < warps; ++w) {
      int& of_warp = taken[w * p.experts + threadIdx.x];
      const int here = of_warp;
      of_warp = count;
      count += here;
    }
  }
  ScanCounts(p, count, begins);
  WriteBlockGroups(p, begins);
  if (warp >= warps) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (i == per_lane) break;
    PlaceSlot(p, slot[i], slot[i].expert >= 0 ? begins.of[slot[i].expert] : 0, own);
  }
}

constexpr int kFewSlots = 256;

// Orders at most kFewSlots slots in one block. First, each thread counts the slots of one expert.
// Then each thread takes one slot and counts the earlier slots of the same expert. With so few
// slots, this takes a third of the time of the counting sort. `ids`: [slots] in shared memory,
// followed by −1 up to a multiple of four.
static __device__ void OrderFewSlots(const RowOrderParams& p, int slots, const int32_t* ids) {
  __shared__ Begins begins;
  const auto same_before = [&](int expert, int end) {
    int same = 0;
    for (int i = 0; i < end; i += 4) {
      const int4 four = *reinterpret_cast<const int4*>(ids + i);
      same += (four.x == expert) + (i + 1 < end && four.y == expert) +
              (i + 2 < end && four.z == expert) + (i + 3 < end && four.w == expert);
    }
    return same;
  };
  const int e = static_cast<int>(threadIdx.x);
  const int32_t count = e < p.experts ? same_before(e, slots) : 0;
  const int32_t begin = ScanCounts(p, count, begins);
  for (int row = 0; row < count; row += kGroupBlockRows)
    p.out.block_groups[(begin + row) / kGroupBlockRows] = e;
  const int used = begins.of[p.experts] / kGroupBlockRows;
  for (int64_t b = used + e; b < p.blocks; b += kOrderThreads) p.out.block_groups[b] = -1;
  if (e >= slots) return;
  const int expert = ids[e];
  p.out.position[e] = expert >= 0 ? begins.of[expert] + same_before(expert, e) : -1;
}

// Computes the whole order in one block. `shared`: [kOrderWarps, experts] in shared memory.
__device__ __forceinline__ void OrderInOneBlock(const RowOrderParams& p, int64_t slots,
                                                int64_t tiles, int* shared) {
  if (tiles == 1) return OrderOneTile(p, slots, shared);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    CountTile(p, slots, tile, shared, p.scratch + tile * p.experts);
    __syncthreads();
  }
  ScanTiles(p, tiles, p.scratch);
  __syncthreads();
  for (int64_t tile = 0; tile < tiles; ++tile)
    PlaceTile(p, slots, tile, p.scratch + tile * p.experts, shared);
}

}  // namespace switchyard::cuda::order
