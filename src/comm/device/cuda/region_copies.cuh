// Copies and reductions between staging regions. Internal to comm/device/cuda.
#pragma once

#include "comm/device/cuda/channel.cuh"
#include "comm/device/cuda/quads.cuh"

namespace switchyard::cuda {

constexpr size_t kQuads = kRegionBytes / 16;  // quads in a region

// store(k, i, load(k, i)) for all k < parts and i < quads, distributed over the block's threads.
// Loads of several parts are in flight before the first store, to hide the latency of peer memory.
template <typename Load, typename Store>
__device__ __forceinline__ void CopyQuads(int parts, uint32_t quads, const Load& load,
                                          const Store& store) {
  constexpr int kBatch = 4;
  for (uint32_t i = threadIdx.x; i < quads; i += kChannelThreads) {
    for (int begin = 0; begin < parts; begin += kBatch) {
      uint4 values[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (begin + b < parts) values[b] = load(begin + b, i);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (begin + b < parts) store(begin + b, i, values[b]);
      }
    }
  }
}

// Sum over members, in group order, of quad `quad` of their regions; this member's own value is
// `mine`. kMost >= set.size.
template <int kMost>
__device__ uint4 ReduceRegions(const ChannelSet& set, const Channel& channel, uint32_t quad,
                               uint4 mine) {
  uint4 values[kMost];
#pragma unroll
  for (int r = 0; r < kMost; ++r) {
    if (r < set.size) values[r] = r == set.rank ? mine : channel.Region(r)[quad];
  }
  uint4 sum = values[0];
#pragma unroll
  for (int r = 1; r < kMost; ++r) {
    if (r < set.size) sum = Add(sum, values[r]);
  }
  return sum;
}

// The k-th peer, starting after the own rank, so that members access different peers first.
__device__ inline int Other(const ChannelSet& set, int k) {
  const int r = set.rank + 1 + k;
  return r < set.size ? r : r - set.size;
}

}  // namespace switchyard::cuda
