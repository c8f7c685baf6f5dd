#include <algorithm>
#include <limits>

#include "comm/device/cuda/collectives.h"
#include "core/check.h"
#include "core/cuda/runtime.h"

namespace switchyard::cuda {
namespace {

static_assert(kMaxMembers == kMaxPeers);

// Partitions `length` elements of each of `parts` parts over blocks: one 16-byte quad per thread.
// Threads get more only if all kChannels blocks are in use.
ChannelSplit Split(size_t length, size_t element_bytes, size_t parts) {
  const size_t per_quad = 16 / element_bytes;
  const size_t quads = (length + per_quad - 1) / per_quad;
  const size_t blocks =
      std::clamp<size_t>((quads * parts + kChannelThreads - 1) / kChannelThreads, 1, kChannels);
  const size_t chunk = (quads + blocks - 1) / blocks;
  return {.blocks = static_cast<int>((quads + chunk - 1) / chunk), .chunk = chunk * per_quad};
}

PartOffsets Starts(std::span<const size_t> counts) {
  PartOffsets starts;
  for (size_t r = 0; r < counts.size(); ++r) starts.at[r + 1] = starts.at[r] + counts[r];
  return starts;
}

// Crossover sizes, measured on H200 with 2, 3 and 4 members (bench/cuda/allreduce_bench.cc). For
// more members they are extrapolated from the bytes that each member sends: members - 1 times the
// message, and twice that with tags.
size_t TaggedBytes(int members) {
  return std::min(kMaxTaggedBytes, (size_t{288} << 10) / static_cast<size_t>(members - 1));
}

size_t OneShotBytes(int members) {
  if (members == 2) return std::numeric_limits<size_t>::max();
  if (members == 3) return size_t{2} << 20;
  return members == 4 ? size_t{512} << 10 : members <= 8 ? size_t{128} << 10 : size_t{64} << 10;
}

}  // namespace

PeerCollectives::PeerCollectives(PeerMemory& memory, std::span<const int> group,
                                 cudaStream_t stream)
    : stream_(stream) {
  const auto own = std::ranges::find(group, memory.rank());
  CHECK(own != group.end());
  CHECK_LE(group.size(), size_t{kMaxMembers});
  set_.rank = static_cast<int>(own - group.begin());
  set_.size = static_cast<int>(group.size());
  if (set_.size == 1) return;
  SetLimits(TaggedBytes(set_.size), OneShotBytes(set_.size));
  const size_t offset = memory.Allocate(MemberBytes(set_.size));
  for (int r = 0; r < set_.size; ++r) {
    set_.buffers[r] = memory.At(group[static_cast<size_t>(r)], offset);
    set_.world_ranks[r] = group[static_cast<size_t>(r)];
  }
  set_.limit = memory.wait_limit();
  for (const cudaError_t error : {LoadTaggedAllReduce(), LoadAllReduce(), LoadGatherAndScatter()})
    Check(error, "loading collective kernels");
}

void PeerCollectives::SetLimits(size_t tagged_bytes, size_t one_shot_bytes) {
  CHECK_LE(tagged_bytes, kMaxTaggedBytes);
  tagged_bytes_ = tagged_bytes;
  one_shot_bytes_ = one_shot_bytes;
}

void PeerCollectives::AllReduceSum(float* data, size_t count) {
  if (set_.size == 1 || count == 0) return;
  const size_t bytes = count * sizeof(float);
  if (bytes <= tagged_bytes_) {
    Check(StartTaggedAllReduce(set_, data, count, stream_), "all-reduce launch");
    return;
  }
  const bool one_shot = bytes <= one_shot_bytes_;
  Check(StartAllReduce(set_, Split(count, sizeof(float), 1), one_shot, data, count, stream_),
        "all-reduce launch");
}

template <typename Unit>
void PeerCollectives::Gather(const void* in, void* out, std::span<const size_t> counts) {
  std::vector<size_t> units(counts.begin(), counts.end());
  for (size_t& n : units) n /= sizeof(Unit);
  const size_t longest = *std::ranges::max_element(units);
  Check(StartAllGather(set_, Split(longest, sizeof(Unit), 1), static_cast<const Unit*>(in),
                       static_cast<Unit*>(out), Starts(units), longest, stream_),
        "all-gather launch");
}

void PeerCollectives::AllGatherV(const void* in, void* out, std::span<const size_t> counts) {
  CHECK_EQ(counts.size(), static_cast<size_t>(set_.size));
  if (set_.size == 1) {
    if (in != out && counts[0] > 0) {
      Check(cudaMemcpyAsync(out, in, counts[0], cudaMemcpyDeviceToDevice, stream_),
            "copy of a group of one");
    }
    return;
  }
  // Members may choose different kernels, because the choice depends on their addresses. The layout
  // in staging and the flags are the same for both kernels.
  uintptr_t all = 0;
  for (const size_t n : counts) all |= n;
  if (all == 0) return;
  const bool aligned = all % 16 == 0 && reinterpret_cast<uintptr_t>(in) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(out) % 16 == 0;
  aligned ? Gather<uint4>(in, out, counts) : Gather<uint8_t>(in, out, counts);
}

void PeerCollectives::ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) {
  CHECK_EQ(counts.size(), static_cast<size_t>(set_.size));
  const PartOffsets starts = Starts(counts);
  const size_t longest = *std::ranges::max_element(counts);
  if (longest == 0) return;
  if (set_.size == 1) {
    if (in != out) {
      Check(cudaMemcpyAsync(out, in, longest * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
            "copy of a group of one");
    }
    return;
  }
  Check(StartReduceScatter(set_, Split(longest, sizeof(float), counts.size()), in, out, starts,
                           longest, stream_),
        "reduce-scatter launch");
}

}  // namespace switchyard::cuda
