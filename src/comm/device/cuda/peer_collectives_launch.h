// Between peer_collectives.cc, which lays out memory and chooses, and the kernels, which are
// compiled for the device. Internal to comm/device/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "comm/device/cuda/wait.h"

namespace switchyard::cuda {

constexpr int kMostMembers = 16;
// A collective runs on up to kChannels blocks. Block c of every member forms a channel, which has
// flags, a round number and staging of its own and never looks at other channels.
constexpr int kChannels = 64;
constexpr int kChannelThreads = 512;
constexpr size_t kRegionBytes = size_t{64} << 10;  // of staging, for one round

// A member's buffer:
//   flags   [kChannels, kMostMembers] by sender; each has one raiser
//   rounds  [kChannels, kMostMembers] the first word: this member's own
//   staging [kChannels, 2, kRegionBytes]
//   tagged  [kChannels, 2, members, kTaggedCellBytes] by sender
constexpr size_t kFlagBytes = kChannels * kMostMembers * sizeof(uint32_t);
constexpr size_t kStagingOffset = 2 * kFlagBytes;
constexpr size_t kTaggedOffset = kStagingOffset + kChannels * 2 * kRegionBytes;
// Of the smallest sums: a block's threads have a quad of 16 bytes each, which is sent as 32.
constexpr int kTaggedThreads = 128;
constexpr size_t kTaggedBlockBytes = kTaggedThreads * 16, kTaggedCellBytes = kTaggedThreads * 32;
constexpr size_t kMostTaggedBytes = kChannels * kTaggedBlockBytes;
constexpr size_t MemberBytes(int members) {
  return kTaggedOffset + kChannels * 2 * static_cast<size_t>(members) * kTaggedCellBytes;
}

struct ChannelSet {
  std::byte* buffers[kMostMembers] = {};  // by member
  int world_ranks[kMostMembers] = {};     // for messages
  int rank = 0, size = 1;                 // in the group
  WaitLimit limit;
};

// Where each member's part begins: [size + 1], in units or floats.
struct PartStarts {
  size_t at[kMostMembers + 1] = {};
};

// How a message is laid on blocks: block c has elements [c · chunk, (c + 1) · chunk) of the
// message, or of each part.
struct ChannelSplit {
  int blocks = 0;
  size_t chunk = 0;
};

cudaError_t StartAllReduce(const ChannelSet& set, const ChannelSplit& split, bool one_shot,
                           float* data, size_t count, cudaStream_t stream);
// Of kMostTaggedBytes at most.
cudaError_t StartTaggedAllReduce(const ChannelSet& set, float* data, size_t count,
                                 cudaStream_t stream);
// Unit: uint4 where memory and counts are multiples of 16 bytes, else uint8_t; lengths are in
// units.
template <typename Unit>
cudaError_t StartAllGather(const ChannelSet& set, const ChannelSplit& split, const Unit* in,
                           Unit* out, const PartStarts& starts, size_t longest,
                           cudaStream_t stream);
cudaError_t StartReduceScatter(const ChannelSet& set, const ChannelSplit& split, const float* in,
                               float* out, const PartStarts& starts, size_t longest,
                               cudaStream_t stream);
// Have the kernels on the current device: loading one later may wait for kernels that run, and
// those may be waiting for a peer on the same GPU.
cudaError_t LoadAllReduce();
cudaError_t LoadTaggedAllReduce();
cudaError_t LoadGatherAndScatter();

}  // namespace switchyard::cuda
