// data [count] = sum over members, in group order: one-shot and two-shot all-reduce over peer
// memory (the terms of TensorRT-LLM's custom all-reduce). The grid has up to kChannels = 64 blocks
// of 512 threads, each with a contiguous chunk of `data`. A block moves its chunk through staging
// regions of 64 KiB, one round per region. Staging accesses are 16 bytes wide, and so are accesses
// to the caller's memory if it is aligned.
#include "comm/device/cuda/region_copies.cuh"

namespace switchyard::cuda {
namespace {

// One-shot: every member reduces the whole message. One barrier per round.
template <int kMost>
__global__ void __launch_bounds__(kChannelThreads, 2)
    OneShotAllReduce(const __grid_constant__ ChannelSet set, float* data, size_t count,
                     size_t chunk) {
  constexpr size_t kStep = kQuads * 4;  // floats per round
  const size_t begin = blockIdx.x * chunk, end = Min(begin + chunk, count);
  Channel channel(set, WaitStage::kAllReduce);
  for (size_t done = begin; done < end; done += kStep) {
    const Quads<float> piece = QuadSlice(data, end, done, done + kStep);
    uint4* region = channel.Region(set.rank);
    for (uint32_t i = threadIdx.x; i < piece.size(); i += kChannelThreads) region[i] = piece.Get(i);
    if (!channel.Barrier(2)) return;
    for (uint32_t i = threadIdx.x; i < piece.size(); i += kChannelThreads)
      piece.Set(i, ReduceRegions<kMost>(set, channel, i, region[i]));
    channel.EndRound();
  }
  channel.Close();
}

// Two-shot: every member reduces its part, then all members gather all parts. Two barriers per
// round. A region has one slot per member. A member copies no input to its own slot, where it later
// writes its sums.
template <int kMost>
__global__ void __launch_bounds__(kChannelThreads, 2)
    TwoShotAllReduce(const __grid_constant__ ChannelSet set, float* data, size_t count,
                     size_t chunk) {
  const uint32_t slot = kQuads / set.size;                       // quads
  const size_t step = static_cast<size_t>(slot) * 4 * set.size;  // floats per round
  const int others = set.size - 1;
  const size_t begin = blockIdx.x * chunk, end = Min(begin + chunk, count);
  Channel channel(set, WaitStage::kAllReduce);
  for (size_t done = begin; done < end; done += step) {
    const size_t stop = Min(done + step, end);
    const uint32_t part = ((stop - done + 3) / 4 + set.size - 1) / set.size;  // quads
    const auto PartOf = [&](int r) {
      return QuadSlice(data, stop, done + r * part * 4, done + (r + 1) * part * 4);
    };
    uint4* region = channel.Region(set.rank);
    CopyQuads(
        others, part, [&](int k, uint32_t i) { return PartOf(Other(set, k)).Get(i); },
        [&](int k, uint32_t i, uint4 value) { region[Other(set, k) * slot + i] = value; });
    if (!channel.Barrier(1)) return;
    const Quads<float> mine = PartOf(set.rank);
    for (uint32_t i = threadIdx.x; i < mine.size(); i += kChannelThreads) {
      const uint32_t quad = set.rank * slot + i;
      const uint4 sum = ReduceRegions<kMost>(set, channel, quad, mine.Get(i));
      region[quad] = sum;
      mine.Set(i, sum);
    }
    if (!channel.Barrier(2)) return;
    CopyQuads(
        others, part,
        [&](int k, uint32_t i) {
          const int r = Other(set, k);
          return channel.Region(r)[r * slot + i];
        },
        [&](int k, uint32_t i, uint4 value) { PartOf(Other(set, k)).Set(i, value); });
    channel.EndRound();
  }
  channel.Close();
}

}  // namespace

cudaError_t StartAllReduce(const ChannelSet& set, const ChannelSplit& split, bool one_shot,
                           float* data, size_t count, cudaStream_t stream) {
  return DispatchGroupSize(set.size, [&](auto most) {
    if (one_shot) {
      OneShotAllReduce<most>
          <<<split.blocks, kChannelThreads, 0, stream>>>(set, data, count, split.chunk);
    } else {
      TwoShotAllReduce<most>
          <<<split.blocks, kChannelThreads, 0, stream>>>(set, data, count, split.chunk);
    }
    return cudaGetLastError();
  });
}

cudaError_t LoadAllReduce() {
  return LoadAll([](auto most) {
    const cudaError_t error = Load(OneShotAllReduce<most>);
    return error == cudaSuccess ? Load(TwoShotAllReduce<most>) : error;
  });
}

}  // namespace switchyard::cuda
