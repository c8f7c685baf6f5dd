// The way back: outputs, or their sums by rank, are stored at the tokens' ranks, which add them up.
#include "comm/device/cuda/wait.cuh"
#include "moe/cuda/exchange_launch.h"
#include "moe/cuda/exchange_places.cuh"
#include "moe/cuda/kernel_chain.cuh"
#include "moe/cuda/row_codec.cuh"

namespace switchyard::cuda {
namespace {

// Warps that move rows, and one that raises flags for what they have moved.
constexpr int kMovers = 14, kReturnThreads = 32 * (kMovers + 1);
constexpr int kSumThreads = 256;
// Blocks that fit on a multiprocessor: of Sum, beside one of Return, so that it can begin early.
constexpr int kSumBlocks = 2;
// 16 bytes a lane that are under way at a time.
constexpr int kCopyVectors = 7, kPartSumVectors = 3, kSumVectors = 4;

// A run of a row, in vectors of 16 bytes.
struct Run {
  int begin, end;
};
// Part `part` of a row of `vectors`, in whole steps of a warp.
__device__ __forceinline__ Run PartOf(int vectors, int parts, int part) {
  const int steps = (vectors + 31) / 32, size = (steps + parts - 1) / parts * 32;
  return {part * size, min((part + 1) * size, vectors)};
}

__device__ __forceinline__ void CopyRun(const uint4* from, uint4* to, Run run) {
  for (int i = run.begin + Lane(); i < run.end; i += 32 * kCopyVectors) {
    uint4 words[kCopyVectors];
#pragma unroll
    for (int v = 0; v < kCopyVectors; ++v)
      if (i + 32 * v < run.end) words[v] = from[i + 32 * v];
#pragma unroll
    for (int v = 0; v < kCopyVectors; ++v)
      if (i + 32 * v < run.end) to[i + 32 * v] = words[v];
  }
}

// sum = Σ weight · row over terms of a list, from zero, in its order, each product and each sum
// rounded. body(to add a row): calls it for each term. Then store(vector, sums).
template <int kElements, int kVectors, typename Terms, typename StoreSums>
__device__ __forceinline__ void SumRun(Run run, const Terms& terms, const StoreSums& store) {
  for (int first = run.begin; first < run.end; first += 32 * kVectors) {
    float sums[kVectors][kElements] = {};
    terms([&](const uint4* row, float weight, bool weighted) {
      uint4 words[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int i = first + 32 * v + Lane();
        words[v] = i < run.end ? row[i] : uint4{};
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float values[kElements];
        Unpack(words[v], values);
#pragma unroll
        for (int e = 0; e < kElements; ++e)
          sums[v][e] = __fadd_rn(sums[v][e], weighted ? __fmul_rn(weight, values[e]) : values[e]);
      }
    });
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = first + 32 * v + Lane();
      if (i < run.end) store(i, sums[v]);
    }
  }
}

__device__ __forceinline__ uint32_t* FlagsOf(const ExchangeBatch& b, int rank, int64_t flags) {
  return reinterpret_cast<uint32_t*>(b.slot[rank] + flags);
}

// Chunks of a source's rows, which one block returns one after the other; those of all sources take
// turns, so that all links are busy. Chunk `index` of the list is there or not (source −1).
struct RowChunk {
  int source, number, first, count;
};
__device__ __forceinline__ RowChunk ChunkOf(const ExchangeBatch& b, int index, int count_of_lane) {
  const int number = index / b.ranks, source = (index + number + b.rank) % b.ranks;
  const int first = number * kChunkRows;
  const int count = min(kChunkRows, __shfl_sync(~0u, count_of_lane, source) - first);
  return {count > 0 ? source : -1, number, first, count};
}

// One part of one dispatched row: its outputs, or their sum, to the rank that it came from.
template <RowKind kRow, bool kByRank>
__device__ __forceinline__ void ReturnRow(const ExchangeBatch& b, int source, int n, int parts,
                                          int part, const uint4* outputs, const int32_t* position) {
  constexpr int kElements = Packing<kRow>::kElements;
  const int lane = Lane(), vectors = b.hidden / kElements;
  const int64_t row = static_cast<int64_t>(source) * b.max_tokens + n;
  const std::byte* own = b.slot[b.rank];
  const int token = reinterpret_cast<const int32_t*>(own + b.layout.tokens)[row];
  const int of_lane = lane < b.top_k ? position[row * b.top_k + lane] : -1;
  const uint32_t slots = __ballot_sync(~0u, of_lane >= 0);
  const Run run = PartOf(vectors, parts, part);
  const auto output = [&](int j) {
    return outputs + static_cast<int64_t>(__shfl_sync(~0u, of_lane, j)) * vectors;
  };
  const auto place = [&](int64_t number) {
    return reinterpret_cast<uint4*>(b.slot[source] + b.layout.returned +
                                    number * b.layout.combined_bytes);
  };
  if constexpr (kByRank) {
    const auto* weights = reinterpret_cast<const float*>(own + b.layout.weights);
    const float weight = lane < b.top_k ? weights[row * b.top_k + lane] : 0.0f;
    uint4* to = place(static_cast<int64_t>(token) * b.ranks + b.rank);
    SumRun<kElements, kPartSumVectors>(
        run,
        [&](const auto& add) {
          for (uint32_t left = slots; left; left &= left - 1) {
            const int j = __ffs(left) - 1;
            add(output(j), __shfl_sync(~0u, weight, j), true);
          }
        },
        [&](int i, const float(&sums)[kElements]) { to[i] = Pack(sums); });
  } else {
    for (uint32_t left = slots; left; left &= left - 1) {
      const int j = __ffs(left) - 1;
      CopyRun(output(j), place(static_cast<int64_t>(token) * b.top_k + j), run);
    }
  }
}

// Between the warps of a block of Return: the chunks it takes, in turns, and how many of them each
// mover is done with. Movers do not wait for one another.
struct ChunkQueue {
  static constexpr uint32_t kAhead = 2;  // chunks that are taken before the slowest is done
  int chunk[kAhead];
  uint32_t taken, done[kMovers];
};

// Moves a warp's share of the chunks that the flag warp takes, until there are no more.
template <RowKind kRow, bool kByRank>
__device__ __forceinline__ void MoveChunks(const ExchangeBatch& b, ChunkQueue& queue, int chunks,
                                           int count, const uint4* outputs,
                                           const int32_t* position) {
  constexpr int kParts = kMovers / kChunkRows;
  const int row = Warp() / kParts, part = Warp() % kParts;
  for (uint32_t turn = 0;; ++turn) {
    while (AcquireInBlock(&queue.taken) == turn) {
    }
    const int index = queue.chunk[turn % ChunkQueue::kAhead];
    if (index >= chunks) return;
    const RowChunk chunk = ChunkOf(b, index, count);
    if (chunk.source >= 0 && row < chunk.count)
      ReturnRow<kRow, kByRank>(b, chunk.source, chunk.first + row, kParts, part, outputs, position);
    __syncwarp();
    if (Lane() == 0) ReleaseInBlock(&queue.done[Warp()], turn + 1);
  }
}

// One warp: takes chunks for the movers, in the order of tokens over all blocks, so that what is
// needed first arrives first, and raises the flags of those that are done.
__device__ __forceinline__ void TakeChunks(const ExchangeBatch& b, ChunkQueue& queue, int chunks,
                                           int count, uint32_t round) {
  const int lane = Lane();
  uint32_t taken = 0, raised = 0;
  int taken_chunk[ChunkQueue::kAhead];
  bool more = true;
  while (more || raised < taken) {
    const uint32_t done =
        __reduce_min_sync(~0u, lane < kMovers ? AcquireInBlock(&queue.done[lane]) : ~0u);
    __syncwarp();
    if (raised < done) __threadfence_system();
    for (; raised < done; ++raised) {
      const RowChunk chunk = ChunkOf(b, taken_chunk[0], count);
      taken_chunk[0] = taken_chunk[1];
      if (chunk.source >= 0 && lane == 0)
        RaiseFencedFlag(
            FlagsOf(b, chunk.source, b.layout.arrived) + b.rank * b.layout.chunks + chunk.number,
            round);
    }
    if (!more || taken - raised == ChunkQueue::kAhead) continue;
    auto index = static_cast<int>(blockIdx.x);
    if (taken > 0) {
      if (lane == 0) index = static_cast<int>(gridDim.x + atomicAdd(&b.state->next_chunk, 1u));
      index = __shfl_sync(~0u, index, 0);
    }
    if (lane == 0) queue.chunk[taken % ChunkQueue::kAhead] = index;
    more = index < chunks;
    taken_chunk[taken - raised] = index;
    if (lane == 0) ReleaseInBlock(&queue.taken, taken + 1);
    if (more) ++taken;
  }
}

template <RowKind kRow, bool kByRank>
__global__ void __launch_bounds__(kReturnThreads, 2)
    Return(const __grid_constant__ ExchangeBatch b, const uint4* outputs, const int32_t* position) {
  __shared__ ChunkQueue queue;
  AllowNextKernel();
  const uint32_t round = b.state->round, active = ActiveRanks(b) & b.state->active;
  const int lane = Lane(), count = active >> lane & 1u ? b.state->received[lane] : 0;
  const int most = __reduce_max_sync(~0u, count);
  const int chunks = (most + kChunkRows - 1) / kChunkRows * b.ranks;
  // That this rank has read the counts of this batch, and will not those of the next.
  if (blockIdx.x == 0 && Warp() == 0 && (active >> lane & 1u))
    RaiseFlag(FlagsOf(b, lane, b.layout.acks) + b.rank, round);
  if (threadIdx.x < kMovers) queue.done[threadIdx.x] = 0;
  if (threadIdx.x == 0) queue.taken = 0;
  __syncthreads();
  if (Warp() < kMovers) {
    MoveChunks<kRow, kByRank>(b, queue, chunks, count, outputs, position);
  } else {
    TakeChunks(b, queue, chunks, count, round);
  }
}

// How a block's warps share tokens: each unit of work is two tokens, or one, or a part of one, so
// that all blocks have some.
struct TokenShares {
  int group = 2, slices = 1;  // tokens of a unit; units that share one
  __device__ TokenShares(const ExchangeBatch& b, int steps) {
    const auto blocks = static_cast<int>(gridDim.x);
    if (b.tokens / 2 >= blocks) return;
    group = 1;
    slices = max(1, min(steps / Warps(), blocks / max(b.tokens, 1)));
  }
};

// One warp of a block: until all outputs of tokens [begin, end) are here. Flags of one source may
// be raised in any order.
//
// Many blocks wait, and what the report says costs a read of host memory, which are slow one after
// the other: one of them reads it, and tells the others.
__device__ __forceinline__ bool WaitForOutputs(const ExchangeBatch& b, int begin, int end,
                                               uint32_t round, uint32_t active) {
  const int lane = Lane(), first = RowsBefore(b, begin), last = RowsBefore(b, end) - 1;
  bool here = true;
  if (active >> lane & 1u) {
    const uint32_t* arrived = FlagsOf(b, b.rank, b.layout.arrived) + lane * b.layout.chunks;
    const bool reads_report = blockIdx.x == 0;
    volatile uint32_t* gave_up = &b.state->gave_up;
    uint64_t start = 0;
    for (int chunk = first / kChunkRows; here && chunk * kChunkRows <= last;) {
      if (static_cast<int32_t>(LoadFlag(arrived + chunk) - round) >= 0) {
        ++chunk;
        continue;
      }
      __nanosleep(100);
      const uint64_t now = Nanoseconds();
      if (start == 0) start = now;
      if (reads_report || now - start > b.limit.nanoseconds) {
        WaitLimit limit = b.limit;
        if (!reads_report) limit.nanoseconds = 0;
        here = WaitFlag(arrived + chunk, round, limit, WaitStage::kCombine, b.world_ranks[lane]);
        if (!here) *gave_up = 1;
      } else {
        here = *gave_up == 0;
      }
    }
  }
  return __all_sync(~0u, here);
}

// Adds tokens' outputs as soon as they are here, while others are still under way.
template <RowKind kRow, bool kByRank>
__global__ void __launch_bounds__(kSumThreads, 4)
    Sum(const __grid_constant__ ExchangeBatch b, float* y) {
  constexpr int kElements = Packing<kRow>::kElements;
  const uint32_t round = b.state->round, active = ActiveRanks(b) & b.state->active;
  const int lane = Lane(), vectors = b.hidden / kElements;
  const TokenShares shares(b, (vectors + 31) / 32);
  const int warps_of_token = Warps() / shares.group, parts = warps_of_token * shares.slices;
  const int units = (b.tokens + shares.group - 1) / shares.group * shares.slices;
  const std::byte* returned = b.slot[b.rank] + b.layout.returned;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const int begin = unit / shares.slices * shares.group;
    const int token = begin + Warp() / warps_of_token;
    const int part = unit % shares.slices * warps_of_token + Warp() % warps_of_token;
    const int64_t slot = static_cast<int64_t>(token) * b.top_k + lane;
    const bool is_slot = token < b.tokens && lane < b.top_k;
    const int rank = is_slot ? PlaceOf(b, b.ids[slot]).rank : -1;
    const bool adds = rank >= 0 && (active >> rank & 1u);
    const float weight = !kByRank && is_slot ? b.weights[slot] : 1.0f;
    // Slots that add something; or the ranks.
    const uint32_t terms =
        kByRank ? __reduce_or_sync(~0u, adds ? 1u << rank : 0u) : __ballot_sync(~0u, adds);
    bool here = true;
    if (Warp() == 0)
      here = WaitForOutputs(b, begin, min(begin + shares.group, b.tokens), round, active);
    if (!__syncthreads_and(here)) break;
    if (token >= b.tokens) continue;
    const int64_t row_of_token = static_cast<int64_t>(token) * (kByRank ? b.ranks : b.top_k);
    SumRun<kElements, kSumVectors>(
        PartOf(vectors, parts, part),
        [&](const auto& add) {
          for (uint32_t left = terms; left; left &= left - 1) {
            const int j = __ffs(left) - 1;
            add(reinterpret_cast<const uint4*>(returned +
                                               (row_of_token + j) * b.layout.combined_bytes),
                __shfl_sync(~0u, weight, j), !kByRank);
          }
        },
        [&](int i, const float(&sums)[kElements]) {
          auto* to = reinterpret_cast<float4*>(y + static_cast<int64_t>(token) * b.hidden +
                                               static_cast<int64_t>(i) * kElements);
#pragma unroll
          for (int e = 0; e < kElements; e += 4)
            to[e / 4] = {sums[e], sums[e + 1], sums[e + 2], sums[e + 3]};
        });
  }
  // A rank that had no row of this one must have read its counts before the next dispatch.
  if (blockIdx.x == 0 && Warp() == 0 && (active >> lane & 1u))
    WaitFlag(FlagsOf(b, b.rank, b.layout.acks) + lane, round, b.limit, WaitStage::kCombine,
             b.world_ranks[lane]);
  WaitForKernelBefore();
}

using ReturnKernel = void (*)(ExchangeBatch, const uint4*, const int32_t*);
using SumKernel = void (*)(ExchangeBatch, float*);

ReturnKernel ReturnKernelFor(RowKind row, bool by_rank) {
  if (row == RowKind::kF32)
    return by_rank ? Return<RowKind::kF32, true> : Return<RowKind::kF32, false>;
  return by_rank ? Return<RowKind::kBF16, true> : Return<RowKind::kBF16, false>;
}
SumKernel SumKernelFor(RowKind row, bool by_rank) {
  if (row == RowKind::kF32) return by_rank ? Sum<RowKind::kF32, true> : Sum<RowKind::kF32, false>;
  return by_rank ? Sum<RowKind::kBF16, true> : Sum<RowKind::kBF16, false>;
}

}  // namespace

cudaError_t LoadCombineKernels() {
  // Return and Sum run beside one another, which takes the same division of a multiprocessor's
  // memory into cache and shared memory.
  const auto load = [](auto kernel) {
    constexpr int kPercentShared = 8;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                kPercentShared);
  };
  cudaError_t error = cudaSuccess;
  for (const RowKind row : {RowKind::kF32, RowKind::kBF16}) {
    for (const bool by_rank : {false, true}) {
      if (error == cudaSuccess) error = load(ReturnKernelFor(row, by_rank));
      if (error == cudaSuccess) error = load(SumKernelFor(row, by_rank));
    }
  }
  return error;
}

cudaError_t StartCombine(const ExchangeBatch& batch, const void* outputs, const int32_t* position,
                         int blocks, cudaStream_t stream) {
  ReturnKernelFor(batch.combined, batch.sum_by_rank)<<<blocks, kReturnThreads, 0, stream>>>(
      batch, static_cast<const uint4*>(outputs), position);
  return cudaGetLastError();
}

cudaError_t StartCombineSum(const ExchangeBatch& batch, float* y, int blocks, cudaStream_t stream) {
  return LaunchEarly(SumKernelFor(batch.combined, batch.sum_by_rank), kSumBlocks * blocks,
                     kSumThreads, 0, batch.early, stream, batch, y);
}

}  // namespace switchyard::cuda
