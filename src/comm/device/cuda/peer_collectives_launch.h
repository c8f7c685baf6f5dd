// Launch interface between peer_collectives.cc, which allocates memory and chooses the kernel, and
// the .cu files. Internal to comm/device/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "comm/device/cuda/wait.h"

namespace switchyard::cuda {

constexpr int kMaxMembers = 16;
// A collective runs on up to kChannels blocks. Block c of every member forms a channel with its own
// flags, round counter and staging, independent of other channels.
constexpr int kChannels = 64;
constexpr int kChannelThreads = 512;
constexpr size_t kRegionBytes = size_t{64} << 10;  // staging of one round

// Layout of a member's buffer:
//   flags   [kChannels, kMaxMembers] by sender; one writer per flag
//   rounds  [kChannels, kMaxMembers] the first word: this member's counter
//   staging [kChannels, 2, kRegionBytes]
//   tagged  [kChannels, 2, members, kTaggedCellBytes] by sender
constexpr size_t kFlagBytes = kChannels * kMaxMembers * sizeof(uint32_t);
constexpr size_t kStagingOffset = 2 * kFlagBytes;
constexpr size_t kTaggedOffset = kStagingOffset + kChannels * 2 * kRegionBytes;
// Tagged all-reduce: each thread has one 16-byte quad, sent as 32 bytes.
constexpr int kTaggedThreads = 128;
constexpr size_t kTaggedBlockBytes = kTaggedThreads * 16, kTaggedCellBytes = kTaggedThreads * 32;
constexpr size_t kMaxTaggedBytes = kChannels * kTaggedBlockBytes;
constexpr size_t MemberBytes(int members) {
  return kTaggedOffset + kChannels * 2 * static_cast<size_t>(members) * kTaggedCellBytes;
}

struct ChannelSet {
  std::byte* buffers[kMaxMembers] = {};  // [size] each member's buffer (layout above)
  int world_ranks[kMaxMembers] = {};     // for error messages
  int rank = 0, size = 1;                // rank of this member; number of members
  WaitLimit limit;
};

// Start of each member's part: [size + 1], in units or floats.
struct PartOffsets {
  size_t at[kMaxMembers + 1] = {};
};

// Partition of a message over blocks: block c has elements [c · chunk, (c + 1) · chunk) of the
// message, or of each part.
struct ChannelSplit {
  int blocks = 0;
  size_t chunk = 0;
};

cudaError_t StartAllReduce(const ChannelSet& set, const ChannelSplit& split, bool one_shot,
                           float* data, size_t count, cudaStream_t stream);
// `count` floats are at most kMaxTaggedBytes.
cudaError_t StartTaggedAllReduce(const ChannelSet& set, float* data, size_t count,
                                 cudaStream_t stream);
// Unit: uint4 if memory and counts are multiples of 16 bytes, else uint8_t; lengths are in units.
template <typename Unit>
cudaError_t StartAllGather(const ChannelSet& set, const ChannelSplit& split, const Unit* in,
                           Unit* out, const PartOffsets& starts, size_t longest,
                           cudaStream_t stream);
cudaError_t StartReduceScatter(const ChannelSet& set, const ChannelSplit& split, const float* in,
                               float* out, const PartOffsets& starts, size_t longest,
                               cudaStream_t stream);
// Load the kernels on the current device. Loading a kernel later may wait for running kernels,
// which may be waiting for a peer on the same GPU.
cudaError_t LoadAllReduce();
cudaError_t LoadTaggedAllReduce();
cudaError_t LoadGatherAndScatter();

}  // namespace switchyard::cuda
