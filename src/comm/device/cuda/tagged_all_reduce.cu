// data [count] = sum over members, in group order, for small messages (up to 128 KiB). No flags:
// every 8 bytes hold data and a tag, written as one store (as in NCCL's LL protocol), so the
// latency is one NVLink traversal. Each member sends its data, at twice its size, to all peers. The
// grid has one block of 128 threads for each 2 KiB of data, one 16-byte quad per thread.
#include <cstdint>

#include "comm/device/cuda/channel.cuh"
#include "comm/device/cuda/quads.cuh"

namespace switchyard::cuda {

// A 16-byte quad sent to a peer as two cells of data and tags. Internal to comm/device/cuda.

// A cell is {data, tag, data, tag}: 8-byte stores are not torn.
__device__ __forceinline__ void SendTagged(uint4* cells, uint4 quad, uint32_t tag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(cells), "r"(quad.x),
               "r"(tag), "r"(quad.y)
               : "memory");
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(cells + 1), "r"(quad.z),
               "r"(tag), "r"(quad.w)
               : "memory");
}

__device__ __forceinline__ uint4 LoadCell(const uint4* cell) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(cell)
               : "memory");
  return v;
}

// Returns false if part of the quad has not arrived; `seen` is then a tag found in the cell.
__device__ __forceinline__ bool LoadTagged(const uint4* cells, uint32_t tag, uint4& quad,
                                           uint32_t& seen) {
  const uint4 a = LoadCell(cells), b = LoadCell(cells + 1);
  quad = {a.x, a.z, b.x, b.z};
  seen = a.y;
  return a.y == tag && a.w == tag && b.y == tag && b.w == tag;
}

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
    bool arrived = true;
    for (int r = 0; r < set.size; ++r) {
      uint4 value = mine;
      if (r != set.rank) {
        const uint4* cells = channel.Tagged(set.rank, r);
        const auto has_arrived = [&](uint32_t& seen) {
          return LoadTagged(cells, tag, value, seen);
        };
        arrived = arrived &&
                  WaitUntil(has_arrived, tag, set.limit, WaitStage::kAllReduce, set.world_ranks[r]);
      }
      sum = r == 0 ? value : Add(sum, value);
    }
    if (arrived) all.Set(quad, sum);
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
