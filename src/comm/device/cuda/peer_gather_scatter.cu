// All-gather and reduce-scatter over peer memory, for parts of unequal lengths. The grid has up to
// kChannels = 64 blocks of 512 threads. Block c handles elements [c · chunk, (c + 1) · chunk) of
// every part. It moves them through staging regions of 64 KiB, with one barrier per round. Sums are
// in group order. Staging and source: peer_all_reduce.cu.
#include "comm/device/cuda/region_copies.cuh"

namespace switchyard::cuda {
namespace {

// Unit: uint4 if all addresses and lengths are multiples of 16 bytes, else a byte. Lengths are in
// units.
template <typename Unit>
__global__ void __launch_bounds__(kChannelThreads, 2)
    AllGather(const __grid_constant__ ChannelSet set, const Unit* in, Unit* out,
              const __grid_constant__ PartOffsets starts, size_t longest, size_t chunk) {
  constexpr size_t kStep = kRegionBytes / sizeof(Unit);
  const auto PieceOf = [&](int r, size_t begin, size_t end) {
    return QuadSlice(out + starts.at[r], starts.at[r + 1] - starts.at[r], begin, end);
  };
  const size_t begin = blockIdx.x * chunk, end = Min(begin + chunk, longest);
  const bool in_place = in == out + starts.at[set.rank];
  Channel channel(set, WaitStage::kAllGather);
  for (size_t done = begin; done < end; done += kStep) {
    const size_t stop = Min(done + kStep, end);
    const auto place = PieceOf(set.rank, done, stop);
    const auto mine = QuadSlice(in, starts.at[set.rank + 1] - starts.at[set.rank], done, stop);
    uint4* region = channel.Region(set.rank);
    for (uint32_t i = threadIdx.x; i < mine.size(); i += kChannelThreads) {
      const uint4 value = mine.Get(i);
      region[i] = value;
      if (!in_place) place.Set(i, value);
    }
    if (!channel.Meet(2)) return;
    CopyQuads(
        set.size - 1, (stop - done + place.kUnits - 1) / place.kUnits,
        [&](int k, uint32_t i) {
          const int r = Other(set, k);
          return i < PieceOf(r, done, stop).size() ? channel.Region(r)[i] : uint4{};
        },
        [&](int k, uint32_t i, uint4 value) { PieceOf(Other(set, k), done, stop).Set(i, value); });
    channel.EndRound();
  }
  channel.Close();
}

template <int kMost>
__global__ void __launch_bounds__(kChannelThreads, 2)
    ReduceScatter(const __grid_constant__ ChannelSet set, const float* in, float* out,
                  const __grid_constant__ PartOffsets starts, size_t longest, size_t chunk) {
  const uint32_t slot = kQuads / set.size;            // quads
  const size_t step = static_cast<size_t>(slot) * 4;  // floats of each part per round
  const size_t begin = blockIdx.x * chunk, end = Min(begin + chunk, longest);
  Channel channel(set, WaitStage::kReduceScatter);
  for (size_t done = begin; done < end; done += step) {
    const size_t stop = Min(done + step, end);
    const auto PieceOf = [&](int r) {
      return QuadSlice(in + starts.at[r], starts.at[r + 1] - starts.at[r], done, stop);
    };
    uint4* region = channel.Region(set.rank);
    CopyQuads(
        set.size - 1, (stop - done + 3) / 4,
        [&](int k, uint32_t i) { return PieceOf(Other(set, k)).Get(i); },
        [&](int k, uint32_t i, uint4 value) { region[Other(set, k) * slot + i] = value; });
    if (!channel.Meet(2)) return;
    const auto mine = PieceOf(set.rank);
    const auto sums = QuadSlice(out, starts.at[set.rank + 1] - starts.at[set.rank], done, stop);
    for (uint32_t i = threadIdx.x; i < mine.size(); i += kChannelThreads)
      sums.Set(i, ReduceRegions<kMost>(set, channel, set.rank * slot + i, mine.Get(i)));
    channel.EndRound();
  }
  channel.Close();
}

}  // namespace

template <typename Unit>
cudaError_t StartAllGather(const ChannelSet& set, const ChannelSplit& split, const Unit* in,
                           Unit* out, const PartOffsets& starts, size_t longest,
                           cudaStream_t stream) {
  AllGather<<<split.blocks, kChannelThreads, 0, stream>>>(set, in, out, starts, longest,
                                                          split.chunk);
  return cudaGetLastError();
}
template cudaError_t StartAllGather(const ChannelSet&, const ChannelSplit&, const uint4*, uint4*,
                                    const PartOffsets&, size_t, cudaStream_t);
template cudaError_t StartAllGather(const ChannelSet&, const ChannelSplit&, const uint8_t*,
                                    uint8_t*, const PartOffsets&, size_t, cudaStream_t);

cudaError_t StartReduceScatter(const ChannelSet& set, const ChannelSplit& split, const float* in,
                               float* out, const PartOffsets& starts, size_t longest,
                               cudaStream_t stream) {
  return DispatchGroupSize(set.size, [&](auto most) {
    ReduceScatter<most>
        <<<split.blocks, kChannelThreads, 0, stream>>>(set, in, out, starts, longest, split.chunk);
    return cudaGetLastError();
  });
}

cudaError_t LoadGatherAndScatter() {
  for (const cudaError_t error : {Load(AllGather<uint4>), Load(AllGather<uint8_t>)})
    if (error != cudaSuccess) return error;
  return LoadAll([](auto most) { return Load(ReduceScatter<most>); });
}

}  // namespace switchyard::cuda
