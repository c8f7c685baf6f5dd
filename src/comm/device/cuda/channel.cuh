// Synchronization and staging between the blocks with the same index in the kernels of all members.
// Internal to comm/device/cuda.
#pragma once

#include <type_traits>

#include "comm/device/cuda/peer_collectives_launch.h"
#include "comm/device/cuda/wait.cuh"

namespace switchyard::cuda {

// A round: write to the own staging region, barrier (Meet), read the peers' regions, and optionally
// a second barrier. Two barriers raise the flags to counter + 1 and then to counter + 2. A single
// barrier raises them directly to counter + 2. Regions are double-buffered. Round n + 2 overwrites
// the region of round n. A block that begins round n + 2 has passed the barrier of round n + 1, so
// all members have finished round n. The counter stays on the device between kernels, so captured
// kernels can be replayed.
class Channel {
 public:
  __device__ explicit Channel(const ChannelSet& set, WaitStage stage)
      : set_(set), stage_(stage), counter_(*Word(set.rank, kFlagBytes, 0)) {}

  __device__ uint4* Region(int member) const {
    const size_t index = blockIdx.x * 2 + ((counter_ >> 1) & 1);
    return reinterpret_cast<uint4*>(set_.buffers[member] + kStagingOffset + index * kRegionBytes);
  }

  // The cells in the buffer of `member` that receive the tagged quads of `sender` in this round.
  // There are two cells per thread.
  __device__ uint4* Tagged(int member, int sender) const {
    const size_t index = (blockIdx.x * 2 + ((counter_ >> 1) & 1)) * set_.size + sender;
    return reinterpret_cast<uint4*>(set_.buffers[member] + kTaggedOffset +
                                    index * kTaggedCellBytes) +
           threadIdx.x * 2;
  }
  // The tag of this round. It differs from the tags of the last 2^31 rounds, and from 0, which
  // marks a cell that was never written.
  __device__ uint32_t Tag() const { return counter_ | 1; }

  // Barrier of this block with the same block of all members; called by all threads. Writes of
  // every member before the barrier are visible to all members after it. Returns false on a
  // timeout, after which the block must exit.
  __device__ bool Meet(int phase) {
    const uint32_t value = counter_ + phase;
    const int peer = threadIdx.x;
    const bool has_peer = peer < set_.size && peer != set_.rank;
    __syncthreads();
    if (has_peer) RaiseFlag(Word(peer, 0, set_.rank), value);
    __syncwarp();
    bool met = true;
    if (has_peer)
      met = WaitFlag(Word(set_.rank, 0, peer), value, set_.limit, stage_, set_.world_ranks[peer]);
    return __syncthreads_and(met);
  }

  __device__ void EndRound() { counter_ += 2; }
  // Writes the counter to device memory. Call it after a block-wide barrier, when all threads have
  // read the counter.
  __device__ void Close() {
    if (threadIdx.x == 0) *Word(set_.rank, kFlagBytes, 0) = counter_;
  }

 private:
  __device__ uint32_t* Word(int member, size_t offset, int slot) const {
    return reinterpret_cast<uint32_t*>(set_.buffers[member] + offset) + blockIdx.x * kMaxMembers +
           slot;
  }

  const ChannelSet& set_;
  WaitStage stage_;
  uint32_t counter_;
};

// Calls f with the smallest of 2, 4, 8 and 16 that is >= `size`, as a compile-time constant.
template <typename F>
cudaError_t DispatchGroupSize(int size, const F& f) {
  if (size <= 2) return f(std::integral_constant<int, 2>());
  if (size <= 4) return f(std::integral_constant<int, 4>());
  if (size <= 8) return f(std::integral_constant<int, 8>());
  return f(std::integral_constant<int, 16>());
}

template <typename Kernel>
cudaError_t Load(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}
template <typename F>
cudaError_t LoadAll(const F& load) {
  for (const int size : {2, 4, 8, 16}) {
    const cudaError_t error = DispatchGroupSize(size, load);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace switchyard::cuda
