// Block c of every member's kernel, talking to one another. Internal to comm/device/cuda.
#pragma once

#include <type_traits>

#include "comm/device/cuda/peer_collectives_launch.h"
#include "comm/device/cuda/wait.cuh"

namespace switchyard::cuda {

// A round is: write to the own region, Meet, read those of others, perhaps once more. Its two
// meetings raise the flags to counter + 1 and counter + 2; a round with one meeting only skips the
// first value. Regions alternate: who begins round n + 2 has met everybody in round n + 1, so that
// all have ended round n, whose region is written again. The counter stays on the device between
// kernels, so that recorded ones can be replayed.
class Channel {
 public:
  __device__ explicit Channel(const ChannelSet& set, WaitStage stage)
      : set_(set), stage_(stage), counter_(*Word(set.rank, kFlagBytes, 0)) {}

  __device__ uint4* Region(int member) const {
    const size_t index = blockIdx.x * 2 + ((counter_ >> 1) & 1);
    return reinterpret_cast<uint4*>(set_.buffers[member] + kStagingOffset + index * kRegionBytes);
  }

  // Where `member` receives tagged quads of `sender` in this round: two cells for each thread.
  __device__ uint4* Tagged(int member, int sender) const {
    const size_t index = (blockIdx.x * 2 + ((counter_ >> 1) & 1)) * set_.size + sender;
    return reinterpret_cast<uint4*>(set_.buffers[member] + kTaggedOffset +
                                    index * kTaggedCellBytes) +
           threadIdx.x * 2;
  }
  // Unlike any that a cell can hold from before: 0 where it was never written.
  __device__ uint32_t Tag() const { return counter_ | 1; }

  // All of the block. What any member's block wrote before, all see after. False: a peer did not
  // come, and the block has to end.
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
  // After a meeting, or something else that all threads came to: they have read the counter.
  __device__ void Close() {
    if (threadIdx.x == 0) *Word(set_.rank, kFlagBytes, 0) = counter_;
  }

 private:
  __device__ uint32_t* Word(int member, size_t offset, int slot) const {
    return reinterpret_cast<uint32_t*>(set_.buffers[member] + offset) + blockIdx.x * kMostMembers +
           slot;
  }

  const ChannelSet& set_;
  WaitStage stage_;
  uint32_t counter_;
};

// Calls f with the least of 2, 4, 8 and 16 that has room for `size` members, as a constant.
template <typename F>
cudaError_t WithMost(int size, const F& f) {
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
    const cudaError_t error = WithMost(size, load);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace switchyard::cuda
