// Problem: top-k selection from logits [tokens, experts] and row ordering, fused, for few tokens.
// Tiling: one warp per token, kOrderWarps warps per block. The last block that finishes sorts the
// rows of all tokens by expert, with a counting sort in one block (row_order.cuh).
// Pipeline: none; constants of the experts are loaded before the wait (kernel_chain.cuh).
// Measured on one H200, Qwen3-30B-A3B: 7.7 µs with one token.
#include <algorithm>

#include "kernels/cuda/device/kernel_chain.cuh"
#include "moe/cuda/permute/row_order.cuh"
#include "moe/cuda/router/select_and_order.h"
#include "moe/cuda/router/select_experts.cuh"

namespace switchyard::cuda {
namespace {

using order::kOrderThreads;
using order::kOrderWarps;

// A warp selects for one token. The last block that finishes orders the rows of all tokens.
template <int kPerLane>
__global__ void __launch_bounds__(kOrderThreads)
    ChooseAndOrderKernel(const SelectExpertsParams choice, const RowOrderParams order,
                         uint32_t* arrived, int64_t slots, int64_t tiles) {
  extern __shared__ int shared[];  // scores of one token per warp, later the counts of the sort
  __shared__ bool last;
  __shared__ __align__(16) int32_t ids[order::kFewSlots];
  LaunchDependents();
  const choice::ExpertConstants<kPerLane> constants(choice);
  WaitForPriorKernels();
  const int warp = threadIdx.x / 32;
  const int64_t token = int64_t{blockIdx.x} * kOrderWarps + warp;
  float* scores = reinterpret_cast<float*>(shared) + warp * kPerLane * 32;
  const bool few = gridDim.x == 1 && slots <= order::kFewSlots;
  if (few && threadIdx.x < order::kFewSlots) ids[threadIdx.x] = -1;
  if (few) __syncthreads();
  if (token < choice.tokens)
    choice::SelectForToken<kPerLane>(choice, constants, token, scores, few ? ids : nullptr);
  if (few) {
    __syncthreads();
    return order::OrderFewSlots(order, static_cast<int>(slots), ids);
  }
  if (gridDim.x > 1) {
    // Makes each thread's writes visible to a block that observes this block's arrival.
    __threadfence();
    __syncthreads();
    // In the last block, atomicInc resets the counter to zero for the next call.
    if (threadIdx.x == 0) {
      last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
      __threadfence();
    }
  }
  __syncthreads();
  if (gridDim.x == 1 || last) order::OrderInOneBlock(order, slots, tiles, shared);
}

template <int kPerLane>
cudaError_t Start(const SelectExpertsParams& choice, const RowOrderParams& order, uint32_t* arrived,
                  const PdlStream& chain) {
  const int64_t slots = order.in.tokens * order.k;
  const int64_t tiles = (slots + kOrderTile - 1) / kOrderTile;
  const auto blocks = static_cast<unsigned>((choice.tokens + kOrderWarps - 1) / kOrderWarps);
  const size_t bytes = kOrderWarps * std::max(order.experts, kPerLane * 32) * sizeof(int);
  return LaunchWithPdl(ChooseAndOrderKernel<kPerLane>, dim3(blocks), kOrderThreads, bytes, chain,
                       choice, order, arrived, slots, tiles);
}

}  // namespace

cudaError_t SelectAndOrder(const SelectExpertsParams& choice, const RowOrderParams& order,
                           uint32_t* arrived, const PdlStream& chain) {
  if (choice.tokens == 0) return cudaSuccess;
  const int logits = choice.num_logits();
  const bool fits = choice.tokens <= kMaxTokensToOrder && SelectsExperts(choice) &&
                    logits <= kMaxLogitsToOrder && order.experts <= kMaxLocalExperts;
  const bool joined = order.ids == choice.ids && order.k == choice.top_k &&
                      order.in.segments == 1 && order.in.tokens == choice.tokens &&
                      order.in.counts == nullptr;
  if (!fits || !joined) return cudaErrorInvalidValue;
  if (logits <= 64) return Start<2>(choice, order, arrived, chain);
  if (logits <= 128) return Start<4>(choice, order, arrived, chain);
  if (logits <= 256) return Start<8>(choice, order, arrived, chain);
  return Start<16>(choice, order, arrived, chain);
}

}  // namespace switchyard::cuda
