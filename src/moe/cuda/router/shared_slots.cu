// Problem: waterfill: appends a slot for the shared expert to the [tokens, k] slots of a rank.
// Tokens are assigned by water-filling: ranks with fewer rows than a common level are filled up to
// it.
// Tiling: one block. Its threads count the rows of each rank. One thread then computes how many
// tokens each rank gets. Finally the threads copy the slots of their tokens and append the shared
// expert's slot.
// Pipeline: none. Measured: not measured.
#include "moe/cuda/router/router_logits.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 1024;

// Computes how many tokens each rank gets: begin[r + 1] - begin[r] for rank r.
__device__ void Level(const int* rows, int ranks, int own, int64_t tokens, int64_t* begin) {
  const auto needed = [&](int64_t level) {
    int64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += max(level - rows[r], int64_t{0});
    return sum;
  };
  // Finds the highest level to which all ranks can be filled with these tokens.
  int64_t low = rows[0], high = rows[0];
  for (int r = 1; r < ranks; ++r) {
    low = min(low, int64_t{rows[r]});
    high = max(high, int64_t{rows[r]});
  }
  high += tokens;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (needed(middle) <= tokens) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  int64_t left = tokens - needed(low);
  int64_t extra[kMaxExchangeRanks];
  for (int i = 0; i < ranks; ++i) {
    const int r = i == 0 ? own : i <= own ? i - 1 : i;  // this rank, then the others in order
    extra[r] = left > 0 && rows[r] <= low ? 1 : 0;
    left -= extra[r];
  }
  begin[0] = 0;
  for (int r = 0; r < ranks; ++r)
    begin[r + 1] = begin[r] + max(low - rows[r], int64_t{0}) + extra[r];
}

__global__ void __launch_bounds__(kThreads) AppendSharedSlotsKernel(const SharedSlotsParams p) {
  __shared__ int rows[kMaxExchangeRanks];
  __shared__ int64_t begin[kMaxExchangeRanks + 1];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kMaxExchangeRanks) rows[thread] = 0;
  __syncthreads();
  int own[kMaxExchangeRanks] = {};
  for (int64_t i = thread; i < p.tokens * p.k; i += kThreads) {
    const int32_t id = p.ids[i];
    const int owner = id >= 0 ? p.owners[id] : -1;
#pragma unroll
    for (int r = 0; r < kMaxExchangeRanks; ++r) own[r] += owner == r;
  }
#pragma unroll
  for (int r = 0; r < kMaxExchangeRanks; ++r)
    if (own[r] > 0) atomicAdd(&rows[r], own[r]);
  __syncthreads();
  if (thread == 0) Level(rows, p.ranks, p.rank, p.tokens, begin);
  __syncthreads();

  const int wide = p.k + 1;
  for (int64_t i = thread; i < p.tokens * wide; i += kThreads) {
    const int64_t token = i / wide;
    const auto slot = static_cast<int>(i % wide);
    if (slot < p.k) {
      p.wide_ids[i] = p.ids[token * p.k + slot];
      p.wide_weights[i] = p.weights[token * p.k + slot];
      continue;
    }
    int rank = 0;
    while (begin[rank + 1] <= token) ++rank;
    p.wide_ids[i] = p.first_shared + rank;
    p.wide_weights[i] = p.gates ? 1.0f / (1.0f + expf(-p.gates[token])) : 1.0f;
  }
}

}  // namespace

cudaError_t AppendSharedSlots(const SharedSlotsParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return cudaSuccess;
  AppendSharedSlotsKernel<<<1, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
