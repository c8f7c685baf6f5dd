// Problem: packs and unpacks the rows and metadata of the NCCL exchange (several hosts).
// Tiling: kThreads threads per block:
//   Accept        one block per source rank: unpacks metadata, computes the prefix sum of returns
//   PlaceReturns  one block per rank: assigns places to expected returns
//   PackReturns   one warp per dispatched row: copies outputs or their sum to the send buffers
// Pipeline: none; NCCL's sends and receives follow on the same stream.
// Measured: not measured.
#include <algorithm>

#include "moe/cuda/dispatchers/exchange_rows.cuh"
#include "moe/cuda/dispatchers/nccl_exchange_launch.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;

// Block-wide exclusive prefix sum of `value`, and the total. All threads call it.
struct Prefix {
  int before, all;
};
__device__ __forceinline__ Prefix BlockPrefix(int value) {
  __shared__ int of_warp[kThreads / 32];
  int up_to = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(~0u, up_to, step);
    if (Lane() >= step) up_to += left;
  }
  __syncthreads();  // all threads have read of_warp of the previous call
  if (Lane() == 31) of_warp[Warp()] = up_to;
  __syncthreads();
  Prefix prefix = {up_to - value, 0};
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < Warp()) prefix.before += of_warp[w];
    prefix.all += of_warp[w];
  }
  return prefix;
}

// One block per source rank.
__global__ void __launch_bounds__(kThreads) Accept(const __grid_constant__ AcceptParams p) {
  const int source = static_cast<int>(blockIdx.x), k = p.top_k;
  const std::byte* metadata = p.metadata[source] - p.layout.counts;
  const int count =
      min(max(*reinterpret_cast<const int32_t*>(metadata + p.layout.counts), 0), p.longest);
  const auto* ids = reinterpret_cast<const int32_t*>(metadata + p.layout.ids);
  const auto* weights = reinterpret_cast<const float*>(metadata + p.layout.weights);
  const int64_t base = static_cast<int64_t>(source) * p.max_tokens;
  int returns = 0;
  for (int tile = 0; tile < count; tile += kThreads) {
    const int row = tile + static_cast<int>(threadIdx.x);
    int own = 0;
    if (row < count) {
      for (int j = 0; j < k; ++j) {
        const int id = ids[row * k + j];
        p.ids[(base + row) * k + j] = id;
        if (p.sum_by_rank) p.weights[(base + row) * k + j] = weights[row * k + j];
        own += id >= 0;
      }
      if (p.sum_by_rank) own = 1;
    }
    const Prefix prefix = BlockPrefix(own);
    if (row < count) p.first_return[base + row] = returns + prefix.before;
    returns += prefix.all;
  }
  if (threadIdx.x == 0) {
    p.counts->received[source] = count;
    p.counts->returns_to_send[source] = returns;
  }
}

// Numbers of returns of one token: those from the ranks below `rank`, and those from `rank`. A rank
// returns one row for each slot whose expert it holds, or a single row if combined by rank.
struct TokenReturns {
  int below, own;
};
template <bool kByRank>
__device__ __forceinline__ TokenReturns ReturnsOf(const ExchangeBatch& b, int token, int rank) {
  TokenReturns n = {0, 0};
  uint32_t ranks = 0;
  for (int j = 0; j < b.top_k; ++j) {
    const int at = PlaceOf(b, b.ids[static_cast<int64_t>(token) * b.top_k + j]).rank;
    if (at < 0) continue;
    ranks |= 1u << at;
    n.below += at < rank;
    n.own += at == rank;
  }
  if (kByRank) n = {__popc(ranks & ((1u << rank) - 1)), static_cast<int>(ranks >> rank & 1u)};
  return n;
}

// One block per rank.
template <bool kByRank>
__global__ void __launch_bounds__(kThreads)
    PlaceReturns(const __grid_constant__ ExchangeBatch b,
                 const __grid_constant__ PlaceReturnsParams p) {
  const int rank = static_cast<int>(blockIdx.x);
  int64_t begin = rank * p.segment;
  if (p.segment < 0) {
    int below = 0;
    for (int token = static_cast<int>(threadIdx.x); token < b.tokens; token += kThreads)
      below += ReturnsOf<kByRank>(b, token, rank).below;
    begin = BlockPrefix(below).all;
  }
  int returns = 0, rows = 0;
  for (int tile = 0; tile < b.tokens; tile += kThreads) {
    const int token = tile + static_cast<int>(threadIdx.x);
    const int own = token < b.tokens ? ReturnsOf<kByRank>(b, token, rank).own : 0;
    const Prefix prefix = BlockPrefix(own);
    int64_t next = begin + returns + prefix.before;
    returns += prefix.all;
    rows += __syncthreads_count(own > 0);
    if (token >= b.tokens) continue;
    if constexpr (kByRank) {
      p.place[static_cast<int64_t>(token) * b.ranks + rank] = own ? static_cast<int>(next) : -1;
    } else {
      for (int j = 0; j < b.top_k; ++j) {
        const int64_t slot = static_cast<int64_t>(token) * b.top_k + j;
        const int at = PlaceOf(b, b.ids[slot]).rank;
        if (at == rank) p.place[slot] = static_cast<int>(next++);
        if (at < 0 && rank == 0) p.place[slot] = -1;
      }
    }
  }
  if (threadIdx.x == 0) {
    p.counts->sent[rank] = rows;
    p.counts->expected[rank] = returns;
  }
}

// One warp per row.
template <RowKind kRow, bool kByRank>
__global__ void __launch_bounds__(kThreads)
    PackReturns(const __grid_constant__ PackReturnsParams p) {
  constexpr int kElements = Packing<kRow>::kElements, kVectors = 4;
  const int lane = Lane(), k = p.top_k, vectors = p.hidden / kElements;
  const int warps = static_cast<int>(gridDim.x) * Warps();
  const Run whole = {0, vectors};
  const auto* outputs = static_cast<const uint4*>(p.outputs);
  for (int item = static_cast<int>(blockIdx.x) * Warps() + Warp(); item < p.ranks * p.longest;
       item += warps) {
    const int source = item % p.ranks, n = item / p.ranks;
    if (n >= p.counts->received[source]) continue;
    const int64_t row = static_cast<int64_t>(source) * p.max_tokens + n;
    const int64_t first = p.first_return[row] - p.begin;  // index in the send buffer
    const int of_lane = lane < k ? p.position[row * k + lane] : -1;
    const uint32_t slots = __ballot_sync(~0u, of_lane >= 0);
    const auto output = [&](int j) {
      return outputs + static_cast<int64_t>(__shfl_sync(~0u, of_lane, j)) * vectors;
    };
    auto* send_buffer = reinterpret_cast<uint4*>(p.send_buffer[source]);
    if constexpr (kByRank) {
      if (first < 0 || first >= p.most) continue;
      const float weight = lane < k ? p.weights[row * k + lane] : 0.0f;
      SumRun<kElements, kVectors>(
          whole,
          [&](const auto& add) {
            for (uint32_t left = slots; left; left &= left - 1) {
              const int j = __ffs(left) - 1;
              add(output(j), __shfl_sync(~0u, weight, j), true);
            }
          },
          [&](int i, const float(&sums)[kElements]) {
            send_buffer[first * vectors + i] = Pack(sums);
          });
    } else {
      int64_t at = first;
      for (uint32_t left = slots; left; left &= left - 1, ++at) {
        const uint4* from = output(__ffs(left) - 1);
        if (at < 0 || at >= p.most) continue;
        for (int i = lane; i < vectors; i += 32) send_buffer[at * vectors + i] = from[i];
      }
    }
  }
}

using PackKernel = void (*)(PackReturnsParams);

PackKernel PackKernelFor(RowKind row, bool by_rank) {
  if (row == RowKind::kF32)
    return by_rank ? PackReturns<RowKind::kF32, true> : PackReturns<RowKind::kF32, false>;
  return by_rank ? PackReturns<RowKind::kBF16, true> : PackReturns<RowKind::kBF16, false>;
}

}  // namespace

cudaError_t StartAccept(const AcceptParams& params, cudaStream_t stream) {
  Accept<<<params.ranks, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t StartPlaceReturns(const ExchangeBatch& batch, const PlaceReturnsParams& params,
                              cudaStream_t stream) {
  const auto kernel = batch.sum_by_rank ? PlaceReturns<true> : PlaceReturns<false>;
  kernel<<<batch.ranks, kThreads, 0, stream>>>(batch, params);
  return cudaGetLastError();
}

cudaError_t StartPackReturns(const PackReturnsParams& params, int blocks, cudaStream_t stream) {
  constexpr int kWarps = kThreads / 32;
  const int enough = std::max(1, (params.ranks * params.longest + kWarps - 1) / kWarps);
  PackKernelFor(params.combined,
                params.sum_by_rank)<<<std::min(blocks, enough), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
