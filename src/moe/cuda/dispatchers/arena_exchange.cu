// Problem: dispatch of rows [tokens, hidden] to experts of this GPU and of CPUs, and sums of their
// outputs over the slots of each token. CPUs reach their part in pinned memory of the host.
// Tiling: a work item is one step of a row, 16 bytes for each lane of a warp; in Send several steps
// if there are many tokens.
//   DropPadding   one thread for each slot
//   Order         as in exchange_dispatch.cu; for few tokens each block of Send computes it
//   Send          rounds each row once, in registers, and writes it to its one or two places
//   WaitForHosts  one warp, a lane for each CPU rank, polls the flags over the link. With few
//                 tokens the blocks of Sum do this instead
//   Sum           each lane has up to eight loads in flight, so that a token with that many experts
//                 on CPUs waits for the link once
// Pipeline: none. The kernels do not start early, because they order writes over the link.
// Not measured yet.
#include <algorithm>

#include "comm/device/cuda/wait.cuh"
#include "moe/cuda/dispatchers/arena_exchange_launch.h"
#include "moe/cuda/dispatchers/exchange_places.cuh"
#include "moe/cuda/dispatchers/row_codec.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;
// Largest number of chunks of tokens whose order each block of Send computes itself.
constexpr int kFewChunks = 8;
constexpr int kLoadsAhead = 8;
// Largest number of blocks of Sum that wait for the CPUs themselves, which saves the end of one
// kernel and the start of another. Each of them polls over the link.
constexpr int kFewBlocks = 16;

__global__ void DropPadding(const __grid_constant__ DropPaddingParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.tokens * p.k && p.first + i / p.k >= *p.rows) p.ids[i] = -1;
}

__global__ void Order(const __grid_constant__ ArenaBatch a) {
  const ExchangeBatch& b = a.tokens;
  const int chunks = (b.tokens + kChunk - 1) / kChunk;
  const int chunk = static_cast<int>(blockIdx.x) * Warps() + Warp();
  if (chunk < chunks) MarkDestinations(b, chunk, ~0u, b.words);
  if (IsLastBlock(&b.state->finished)) PrefixCounts(b, b.words, b.before, b.state->sent);
}

// The mask of the ranks on CPUs: all but this one.
__device__ __forceinline__ uint32_t HostRanks(const ExchangeBatch& b) {
  return ((1u << b.ranks) - 1) & ~(1u << b.rank);
}

__device__ __forceinline__ std::byte* RowInArena(const ArenaBatch& a, int token) {
  const int64_t row = a.tokens.rank * a.at.capacity + token;
  return a.arena[a.tokens.rank] + a.at.rows + row * a.at.row_bytes;
}

// The flag of this rank in the arena of rank `to`.
__device__ __forceinline__ uint32_t* FlagAt(const ArenaBatch& a, int to, int stage, int from) {
  return reinterpret_cast<uint32_t*>(a.arena[to] + a.at.flags +
                                     (stage * a.tokens.ranks + from) * a.at.flag_stride);
}

// Writes a token's local ids for this GPU, and its tags for each of `hosts`. In lane r, `row` is
// the index of the token's row at rank r.
__device__ __forceinline__ void SendTags(const ArenaBatch& a, int token, uint32_t hosts, int row) {
  const ExchangeBatch& b = a.tokens;
  const int lane = Lane();
  const int64_t first = static_cast<int64_t>(token) * b.top_k;
  static_assert(kMaxExchangeTopK <= 32);  // a lane for each slot
  ExpertPlace place = {-1, -1};
  if (lane < b.top_k) {
    place = PlaceOf(b, b.ids[first + lane]);
    a.own_ids[first + lane] = place.rank == b.rank ? place.local_id : -1;
  }
  // A tag is the token, then the local ids.
  for (uint32_t left = hosts; left; left &= left - 1) {
    const int r = __ffs(left) - 1;
    const int64_t at = b.rank * a.at.capacity + __shfl_sync(~0u, row, r);
    auto* tag = reinterpret_cast<int32_t*>(a.arena[r] + a.at.tags) + at * (1 + b.top_k);
    if (lane == 0) tag[0] = token;
    if (lane < b.top_k) tag[1 + lane] = place.rank == r ? place.local_id : -1;
  }
}

// Stores 16 bytes to an address that is a multiple of 16, or else of 4.
__device__ __forceinline__ void StoreWords(std::byte* to, uint4 words, bool aligned) {
  if (aligned) {
    *reinterpret_cast<uint4*>(to) = words;
    return;
  }
  auto* word = reinterpret_cast<uint32_t*>(to);
  word[0] = words.x;
  word[1] = words.y;
  word[2] = words.z;
  word[3] = words.w;
}

// Writes steps [begin, end) of a token's row to `own` and to `host`; null: it has no expert there.
template <typename In, RowKind kRow>
__device__ __forceinline__ void SendRow(const ArenaBatch& a, int token, int begin, int end,
                                        std::byte* own, std::byte* host) {
  constexpr int kElements = Packing<kRow>::kElements;
  const ExchangeBatch& b = a.tokens;
  const int lane = Lane();
  const bool aligned = a.at.row_bytes % 16 == 0;
  const In* x = static_cast<const In*>(b.x) + static_cast<int64_t>(token) * b.hidden;
  for (int step = begin; step < end; ++step) {
    const int element = (step * 32 + lane) * kElements;
    const bool inside = element < b.hidden;
    float values[kElements] = {};
    if (inside) LoadElements(x + element, values);
    const int64_t offset = static_cast<int64_t>(element) * Packing<kRow>::kElementBytes;
    uint4 words;
    if constexpr (kRow == RowKind::kFp8) {
      float scale;
      words = PackFp8Group(values, &scale);
      // Eight lanes have a group. The first one stores its scale.
      if (inside && lane % 8 == 0) {
        const int64_t at = b.layout.scale_offset + element / 128 * 4;
        if (own) *reinterpret_cast<float*>(own + at) = scale;
        if (host) *reinterpret_cast<float*>(host + at) = scale;
      }
    } else {
      words = Pack(values);
    }
    if (inside && own) *reinterpret_cast<uint4*>(own + offset) = words;
    if (inside && host) StoreWords(host + offset, words, aligned);
  }
}

// Raises both flags of the batch at all CPUs. Called by one thread, after IsLastBlock.
__device__ __forceinline__ void RaiseFlags(const ArenaBatch& a, uint32_t round) {
  const ExchangeBatch& b = a.tokens;
  for (uint32_t left = HostRanks(b); left; left &= left - 1) {
    const int r = __ffs(left) - 1;
    RaiseFencedFlag(FlagAt(a, r, a.at.rows_flag, b.rank), round);
    RaiseFencedFlag(FlagAt(a, r, a.at.outputs_flag, b.rank), round);
  }
  b.state->round = round;
}

template <typename In, RowKind kRow, bool kOrders>
__global__ void __launch_bounds__(kThreads) Send(const __grid_constant__ ArenaBatch a) {
  __shared__ uint32_t words[kFewChunks * kMaxExchangeRanks];
  __shared__ int32_t before[kFewChunks * kMaxExchangeRanks];
  __shared__ int32_t total[kMaxExchangeRanks];
  const ExchangeBatch& b = a.tokens;
  const uint32_t round = b.state->round + 1;
  const int chunks = (b.tokens + kChunk - 1) / kChunk;
  if constexpr (kOrders) {
    for (int chunk = Warp(); chunk < chunks; chunk += Warps())
      MarkDestinations(b, chunk, ~0u, words);
    __syncthreads();
    PrefixCounts(b, words, before, total);
    __syncthreads();
  }
  constexpr int kElements = Packing<kRow>::kElements;
  const int steps = (b.hidden + 32 * kElements - 1) / (32 * kElements);
  const int warps = static_cast<int>(gridDim.x) * Warps();
  const int parts = max(1, min(steps, warps / max(b.tokens, 1)));
  const int part_steps = (steps + parts - 1) / parts;
  const int first = Warp() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  for (int item = first; item < b.tokens * parts; item += warps) {
    const int token = item / parts, begin = item % parts * part_steps;
    const int row = kOrders ? RowAt(b, token, words, before) : RowAt(b, token, b.words, b.before);
    const uint32_t ranks = __ballot_sync(~0u, row >= 0), hosts = ranks & HostRanks(b);
    if (begin == 0) SendTags(a, token, hosts, row);
    std::byte* const own = ranks >> b.rank & 1u ? a.own_rows + token * a.own_stride : nullptr;
    std::byte* const host = hosts ? RowInArena(a, token) : nullptr;
    if (ranks) SendRow<In, kRow>(a, token, begin, min(begin + part_steps, steps), own, host);
  }
  if (blockIdx.x == 0 && Warp() == 0) {
    const int r = Lane();
    if (HostRanks(b) >> r & 1u)
      reinterpret_cast<int32_t*>(a.arena[r] + a.at.counts)[b.rank] =
          kOrders ? total[r] : b.state->sent[r];
    if (r == 0) b.state->received[0] = b.tokens;
  }
  if (IsLastBlock(&b.state->finished) && threadIdx.x == 0) RaiseFlags(a, round);
}

// Waits for the outputs of all CPUs. After a timeout or an abort the sums are undefined; the host
// then throws. Lane r of one warp waits for rank r.
__device__ __forceinline__ void AwaitHosts(const ArenaBatch& a) {
  const ExchangeBatch& b = a.tokens;
  const int r = Lane();
  if (!(HostRanks(b) >> r & 1u)) return;
  const uint32_t round = b.state->round;
  const uint32_t* const flag = FlagAt(a, b.rank, a.at.outputs_flag, r);
  const volatile uint32_t* const aborted = a.aborted;
  int polls = 0;
  const auto reached = [&](uint32_t& seen) {
    constexpr int kPollsPerCheck = 64;  // the abort is on another cache line of the host
    seen = LoadFlag(flag);
    return static_cast<int32_t>(seen - round) >= 0 ||
           (++polls % kPollsPerCheck == 0 && *aborted != 0);
  };
  WaitUntil(reached, round, b.limit, WaitStage::kCombine, b.world_ranks[r]);
}

__global__ void WaitForHosts(const __grid_constant__ ArenaBatch a) { AwaitHosts(a); }

// The sources of the outputs of a token, each in the lane of its slot.
struct SlotTerm {
  const uint4* row = nullptr;  // null: the slot adds nothing
  bool on_host = false;
  float weight = 0.0f;
};

template <int kElements>
__device__ __forceinline__ SlotTerm TermOf(const ArenaBatch& a, int token, int vectors) {
  const ExchangeBatch& b = a.tokens;
  SlotTerm term;
  if (Lane() >= b.top_k) return term;
  const int64_t slot = static_cast<int64_t>(token) * b.top_k + Lane();
  const int rank = PlaceOf(b, b.ids[slot]).rank;
  if (rank < 0) return term;
  term.weight = b.weights[slot];
  term.on_host = rank != b.rank;
  term.row =
      term.on_host
          ? reinterpret_cast<const uint4*>(a.arena[b.rank] + a.at.outputs) + slot * vectors
          : static_cast<const uint4*>(a.outputs) + static_cast<int64_t>(a.position[slot]) * vectors;
  return term;
}

// Adds the terms of a token to `sums`, in the order of slots, for vector i of the row.
template <int kElements>
__device__ __forceinline__ void AddTerms(const SlotTerm& term, int i, bool inside,
                                         float (&sums)[kElements]) {
  const uint32_t hosts = __ballot_sync(~0u, term.on_host);
  uint32_t left = __ballot_sync(~0u, term.row != nullptr);
  const auto address = reinterpret_cast<unsigned long long>(term.row);
  while (left) {
    uint4 words[kLoadsAhead];
    float weights[kLoadsAhead];
    const int count = __popc(left);
#pragma unroll
    for (int n = 0; n < kLoadsAhead; ++n) {
      words[n] = uint4{};
      weights[n] = 0.0f;
      if (n >= count) continue;
      const int j = __ffs(left) - 1;
      left &= left - 1;
      weights[n] = __shfl_sync(~0u, term.weight, j);
      const auto* row = reinterpret_cast<const uint4*>(__shfl_sync(~0u, address, j));
      if (inside) words[n] = hosts >> j & 1u ? __ldcv(row + i) : row[i];
    }
#pragma unroll
    for (int n = 0; n < kLoadsAhead; ++n) {
      if (n >= count) continue;
      float values[kElements];
      Unpack(words[n], values);
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        sums[e] = __fadd_rn(sums[e], __fmul_rn(weights[n], values[e]));
    }
  }
}

// `kWaits`: each block waits for the CPUs itself. The acquired flag and the barrier order the loads
// of all threads of the block.
template <RowKind kRow, bool kWaits>
__global__ void __launch_bounds__(kThreads)
    Sum(const __grid_constant__ ArenaBatch a, float* __restrict__ y) {
  constexpr int kElements = Packing<kRow>::kElements;
  const ExchangeBatch& b = a.tokens;
  if constexpr (kWaits) {
    if (Warp() == 0) AwaitHosts(a);
    __syncthreads();
  }
  const int vectors = b.hidden / kElements, steps = (vectors + 31) / 32;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * Warps();
  const int64_t items = static_cast<int64_t>(b.tokens) * steps;
  const int64_t first = static_cast<int64_t>(Warp()) * gridDim.x + blockIdx.x;
  for (int64_t item = first; item < items; item += warps) {
    const int token = static_cast<int>(item / steps);
    const int i = static_cast<int>(item % steps) * 32 + Lane();
    const bool inside = i < vectors;
    float sums[kElements] = {};
    AddTerms<kElements>(TermOf<kElements>(a, token, vectors), i, inside, sums);
    if (!inside) continue;
    const float last = WeightOf(b.addend, token);
    const int64_t at = static_cast<int64_t>(token) * b.hidden + static_cast<int64_t>(i) * kElements;
#pragma unroll
    for (int e = 0; e < kElements; e += 4) {
      float4 sum = {sums[e], sums[e + 1], sums[e + 2], sums[e + 3]};
      if (b.addend.x) {
        const float4 x = *reinterpret_cast<const float4*>(b.addend.x + at + e);
        sum = {__fadd_rn(sum.x, __fmul_rn(last, x.x)), __fadd_rn(sum.y, __fmul_rn(last, x.y)),
               __fadd_rn(sum.z, __fmul_rn(last, x.z)), __fadd_rn(sum.w, __fmul_rn(last, x.w))};
      }
      *reinterpret_cast<float4*>(y + at + e) = sum;
    }
  }
}

using SendKernel = void (*)(ArenaBatch);
using SumKernel = void (*)(ArenaBatch, float*);

template <typename In, bool kOrders>
SendKernel SendFrom(RowKind row) {
  switch (row) {
    case RowKind::kF32:
      return Send<In, RowKind::kF32, kOrders>;
    case RowKind::kBF16:
      return Send<In, RowKind::kBF16, kOrders>;
    case RowKind::kFp8:
      return Send<In, RowKind::kFp8, kOrders>;
  }
  return nullptr;
}
SendKernel SendFor(bool x_is_bf16, RowKind row, bool orders) {
  if (x_is_bf16)
    return orders ? SendFrom<__nv_bfloat16, true>(row) : SendFrom<__nv_bfloat16, false>(row);
  return orders ? SendFrom<float, true>(row) : SendFrom<float, false>(row);
}

SumKernel SumFor(RowKind row, bool waits) {
  if (row == RowKind::kF32) return waits ? Sum<RowKind::kF32, true> : Sum<RowKind::kF32, false>;
  return waits ? Sum<RowKind::kBF16, true> : Sum<RowKind::kBF16, false>;
}

// The grid for `items` work items of a warp.
int BlocksFor(int64_t items, int blocks) {
  constexpr int kWarps = kThreads / 32;
  return static_cast<int>(std::clamp<int64_t>((items + kWarps - 1) / kWarps, 1, blocks));
}

}  // namespace

cudaError_t DropPaddingIds(const DropPaddingParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  const int64_t blocks = (p.tokens * p.k + kThreads - 1) / kThreads;
  DropPadding<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t LoadArenaKernels() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, Order);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, WaitForHosts);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, DropPadding);
  for (const RowKind row : {RowKind::kF32, RowKind::kBF16, RowKind::kFp8}) {
    for (const bool x_is_bf16 : {false, true})
      for (const bool orders : {false, true})
        if (error == cudaSuccess)
          error = cudaFuncGetAttributes(&attributes, SendFor(x_is_bf16, row, orders));
    for (const bool waits : {false, true})
      if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, SumFor(row, waits));
  }
  return error;
}

cudaError_t StartArenaDispatch(const ArenaBatch& batch, int blocks, cudaStream_t stream) {
  const ExchangeBatch& tokens = batch.tokens;
  const int chunks = (tokens.tokens + kChunk - 1) / kChunk;
  const bool orders = chunks <= kFewChunks;
  if (!orders) {
    Order<<<BlocksFor(chunks, chunks), kThreads, 0, stream>>>(batch);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  const int64_t steps = (tokens.hidden + 127) / 128;  // of float32 rows, which have the most
  SendFor(tokens.x_is_bf16, tokens.dispatched,
          orders)<<<BlocksFor(tokens.tokens * steps, blocks), kThreads, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t StartArenaCombine(const ArenaBatch& batch, float* y, int blocks, cudaStream_t stream) {
  const ExchangeBatch& tokens = batch.tokens;
  const int64_t items = tokens.tokens * int64_t{(tokens.hidden + 127) / 128};
  const int grid = BlocksFor(items, 4 * blocks);
  const bool waits = grid <= kFewBlocks && tokens.tokens > 0;
  if (!waits) {
    WaitForHosts<<<1, 32, 0, stream>>>(batch);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    if (tokens.tokens == 0) return cudaSuccess;
  }
  SumFor(tokens.combined, waits)<<<grid, kThreads, 0, stream>>>(batch, y);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
