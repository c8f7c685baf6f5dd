// How blocks bring slots into the order of their experts.
#pragma once

#include "kernels/cuda/grouped_gemm.h"
#include "moe/cuda/row_order.h"

namespace switchyard::cuda::order {

constexpr int kOrderThreads = 512;
constexpr int kOrderWarps = kOrderThreads / 32;
constexpr int kWarpSlots = kOrderTile / kOrderWarps;  // consecutive slots that a warp places
constexpr int kOneBlockTiles = 4;                     // that one block takes alone
static_assert(kOrderThreads >= kMaxLocalExperts);     // a thread for each expert

// Slot i of all: i / (tokens · k) is its segment. −1 beyond a segment's rows.
struct Slot {
  int64_t at;  // in ids and position; −1 where there is no such row
  int expert;  // −1: none here
};
__device__ __forceinline__ Slot SlotOf(const RowOrderParams& p, int64_t slots, int64_t i) {
  if (i >= slots) return {-1, -1};
  const auto in_segment = static_cast<uint32_t>(p.in.tokens) * p.k;
  const int segment = static_cast<uint32_t>(i) / in_segment;
  const uint32_t rest = static_cast<uint32_t>(i) - segment * in_segment;
  const int row = rest / p.k;
  if (p.in.counts && row >= p.in.counts[segment]) return {-1, -1};
  const int64_t at = segment * p.in.capacity * p.k + rest;
  // Past the first cache: other blocks of this kernel may have written it (choose_and_order.cu).
  return {at, __ldcg(p.ids + at)};
}

// counts [experts] = slots of each expert in the tile.
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

// From counts of tiles [tiles, experts] to the first output row of each tile's slots of an expert,
// and the padded offsets.
static __device__ void ScanTiles(const RowOrderParams& p, int64_t tiles, int32_t* of_tiles) {
  __shared__ int32_t begins[kMaxLocalExperts + 1];
  alignas(16) __shared__ int32_t warp_sums[kOrderWarps];
  const int e = threadIdx.x, lane = e % 32, warp = e / 32;
  int32_t count = 0;
  if (e < p.experts) {
#pragma unroll 4
    for (int64_t t = 0; t < tiles; ++t) count += of_tiles[t * p.experts + e];
  }
  const int32_t padded = (count + kGroupBlockRows - 1) / kGroupBlockRows * kGroupBlockRows;
  int32_t sum = padded;  // inclusive over experts
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int32_t below = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += below;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warp_sums[w];
  if (e < p.experts) {
    begins[e] = sum - padded;
    if (e == p.experts - 1) begins[p.experts] = sum;
    p.out.offsets[e] = sum - padded;
    if (e == p.experts - 1) p.out.offsets[p.experts] = sum;
    p.out.counts[e] = count;
    int32_t next = sum - padded;
    for (int64_t t = 0; t < tiles; ++t) {
      const int32_t here = of_tiles[t * p.experts + e];
      of_tiles[t * p.experts + e] = next;
      next += here;
    }
  }
  __syncthreads();
  for (int64_t b = threadIdx.x; b < p.blocks; b += kOrderThreads) {
    const int64_t row = b * kGroupBlockRows;
    int low = 0, high = p.experts;  // the last expert that begins at or before `row`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (begins[middle] <= row ? low : high) = middle;
    }
    p.out.block_groups[b] = row < begins[p.experts] ? low : -1;
  }
}

// `next` [kOrderWarps, experts] in shared memory, `begins` [experts] the first output rows of the
// tile.
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
  for (int i = lane; i < kWarpSlots; i += 32) {
    const Slot slot = SlotOf(p, slots, first + i);
    const unsigned same = __match_any_sync(~0u, slot.expert);
    const int before = __popc(same & ((1u << lane) - 1));
    int row = -1;
    if (slot.expert >= 0) row = own[slot.expert] + before;
    __syncwarp();
    if (slot.expert >= 0 && before == 0) own[slot.expert] += __popc(same);
    __syncwarp();
    if (slot.at >= 0) p.out.position[slot.at] = row;
  }
  __syncthreads();
}

// All of an order by one block; `shared` [kOrderWarps, experts].
__device__ __forceinline__ void OrderInOneBlock(const RowOrderParams& p, int64_t slots,
                                                int64_t tiles, int* shared) {
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
