// Destination rows of tokens, computed as a stable prefix sum over tokens for each rank. The result
// is deterministic, because no order depends on atomics.
#pragma once

#include "moe/cuda/dispatchers/exchange_launch.h"

namespace switchyard::cuda {

constexpr int kChunk = 32;  // tokens per bit-mask word

__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ int Warps() { return static_cast<int>(blockDim.x) / 32; }

// Returns the bit mask of active ranks. A rank is always active in its own exchange. All lanes of
// the warp call it.
__device__ __forceinline__ uint32_t ActiveRanks(const ExchangeBatch& b) {
  const int lane = Lane();
  const bool in = lane < b.ranks && (!b.active || lane == b.rank || b.active[lane] != 0);
  return __ballot_sync(~0u, in);
}

// Rank and local id of a physical expert; rank −1 for invalid ids.
struct ExpertPlace {
  int rank, local_id;
};
__device__ __forceinline__ ExpertPlace PlaceOf(const ExchangeBatch& b, int32_t id) {
  if (static_cast<uint32_t>(id) >= static_cast<uint32_t>(b.num_experts)) return {-1, -1};
  const int32_t place = b.experts[id];
  return {place >> kRankShift, place & ((1 << kRankShift) - 1)};
}

// For each rank, sets the bit mask of those tokens of the chunk that have an expert on that rank.
// `words` [chunks, ranks]. Called by one warp.
__device__ __forceinline__ void MarkDestinations(const ExchangeBatch& b, int chunk, uint32_t active,
                                                 uint32_t* words) {
  const int token = chunk * kChunk + Lane();
  uint32_t ranks = 0;
  if (token < b.tokens) {
    const int32_t* ids = b.ids + static_cast<int64_t>(token) * b.top_k;
#pragma unroll 8
    for (int j = 0; j < b.top_k; ++j) {
      const int rank = PlaceOf(b, ids[j]).rank;
      if (rank >= 0) ranks |= 1u << rank;
    }
  }
  ranks &= active;
  uint32_t of_lane = 0;
  for (int r = 0; r < b.ranks; ++r) {
    const uint32_t word = __ballot_sync(~0u, ranks >> r & 1u);
    if (Lane() == r) of_lane = word;
  }
  if (Lane() < b.ranks) words[chunk * b.ranks + Lane()] = of_lane;
}

// Called by one block, after MarkDestinations of all chunks; each warp processes one rank at a
// time. Writes `before` [chunks, ranks], the number of rows that earlier chunks send to the rank,
// and `total` [ranks], the number of rows that all chunks send to the rank.
__device__ __forceinline__ void PrefixCounts(const ExchangeBatch& b, const uint32_t* words,
                                             int32_t* before, int32_t* total) {
  const int chunks = (b.tokens + kChunk - 1) / kChunk;
  for (int r = Warp(); r < b.ranks; r += Warps()) {
    int sum = 0;
    for (int first = 0; first < chunks; first += 32) {
      const int chunk = first + Lane();
      const int count = chunk < chunks ? __popc(words[chunk * b.ranks + r]) : 0;
      int up_to = count;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(~0u, up_to, step);
        if (Lane() >= step) up_to += left;
      }
      if (chunk < chunks) before[chunk * b.ranks + r] = sum + up_to - count;
      sum += __shfl_sync(~0u, up_to, 31);
    }
    if (Lane() == 0) total[r] = sum;
  }
}

// Lane r returns the number of rows that the tokens before `token` send to rank r. `token` may
// equal the number of tokens.
__device__ __forceinline__ int CountRowsBefore(const ExchangeBatch& b, int token) {
  const int chunks = (b.tokens + kChunk - 1) / kChunk;
  if (Lane() >= b.ranks || chunks == 0) return 0;
  // If `token` is the number of tokens and the last chunk is full, there is no next chunk; the last
  // chunk is then used with all its bits.
  const int chunk = min(token / kChunk, chunks - 1), within = token - chunk * kChunk;
  const int at = chunk * b.ranks + Lane();
  const uint32_t below = within == kChunk ? ~0u : (1u << within) - 1;
  return b.before[at] + __popc(b.words[at] & below);
}

// Lane r returns the index of the token's row at rank r; −1 if the token is not sent there.
__device__ __forceinline__ int RowAt(const ExchangeBatch& b, int token, const uint32_t* words,
                                     const int32_t* before) {
  if (Lane() >= b.ranks) return -1;
  const int at = token / kChunk * b.ranks + Lane();
  const uint32_t word = words[at], bit = 1u << token % kChunk;
  return word & bit ? before[at] + __popc(word & (bit - 1)) : -1;
}

// Returns true in all threads of the last block that finishes. This block sees the writes of all
// other blocks, and its thread 0 may raise flags for them with RaiseFencedFlag. `finished` counts
// blocks and is reset to 0 by the last one.
__device__ __forceinline__ bool IsLastBlock(uint32_t* finished) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();  // publishes the block's writes, including those to peers
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
    if (last) *finished = 0;
    __threadfence_system();
  }
  __syncthreads();
  return last;
}

}  // namespace switchyard::cuda
