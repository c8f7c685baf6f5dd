// data [count] = sum over members, in group order, for small messages (up to 128 KiB). No flags:
// every 8 bytes hold data and a tag, written as one store (as in NCCL's LL protocol), so the
// latency is one NVLink traversal. Each member sends its data, at twice its size, to all peers. The
// grid has one block of 128 threads for each 2 KiB of data, one 16-byte quad per thread.
#include "comm/device/cuda/channel.cuh"
#include "comm/device/cuda/quads.cuh"
#include "comm/device/cuda/tagged_quad.cuh"

namespace switchyard::cuda {
namespace {

// A cell that is written in round i is written again in round i + 2. Its reader has read it by
// then. In round i + 1 the writer waits for a quad of the reader's block, which that block sends
// after it has finished round i. Every block sends at least the quad of its first thread.
template <int kMost>
__global__ void __launch_bounds__(kTaggedThreads)
    TaggedAllReduce(const __grid_constant__ ChannelSet set, float* data, size_t count) {
  const Quads<float> all(data, count);
  const size_t quad = blockIdx.x * kTaggedThreads + threadIdx.x;
  Channel channel(set, WaitStage::kAllReduce);
  if (quad < all.size()) {
    const uint32_t tag = channel.Tag();
    const uint4 mine = all.Get(quad);
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r < set.size && r != set.rank) SendTagged(channel.Tagged(r, set.rank), mine, tag);
    }
    uint4 sum = {};
    bool met = true;
    for (int r = 0; r < set.size; ++r) {
      uint4 value = mine;
      if (r != set.rank) {
        const uint4* cells = channel.Tagged(set.rank, r);
        const auto come = [&](uint32_t& seen) { return LoadTagged(cells, tag, value, seen); };
        met = met && WaitUntil(come, tag, set.limit, WaitStage::kAllReduce, set.world_ranks[r]);
      }
      sum = r == 0 ? value : Add(sum, value);
    }
    if (met) all.Set(quad, sum);
  }
  channel.EndRound();
  __syncthreads();
  channel.Close();
}

}  // namespace

cudaError_t StartTaggedAllReduce(const ChannelSet& set, float* data, size_t count,
                                 cudaStream_t stream) {
  const size_t floats = kTaggedBlockBytes / sizeof(float);
  const int blocks = static_cast<int>((count + floats - 1) / floats);
  return DispatchGroupSize(set.size, [&](auto most) {
    TaggedAllReduce<most><<<blocks, kTaggedThreads, 0, stream>>>(set, data, count);
    return cudaGetLastError();
  });
}

cudaError_t LoadTaggedAllReduce() {
  return LoadAll([](auto most) { return Load(TaggedAllReduce<most>); });
}

}  // namespace switchyard::cuda
