// Problem: samples one token per row of logits [rows, vocab]: greedy, or temperature with top-k,
// top-p and min-p (top-p: Holtzman et al. 2020; min-p: Nguyen et al. 2024).
// Tiling: one block of 1024 threads per row. Sums are taken in a fixed order of ids, in double.
// Pipeline: none; the thresholds of top-k and top-p are found by bisection over the bits of the
// weights, without a sort, so a row is read several times.
// Measured: not measured alone.
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/elementwise/sample.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

// Block-wide sum in the order of warps, returned to all threads.
template <typename T>
__device__ T BlockSum(T x, T* shared) {
  x = WarpSum(x);
  __syncthreads();  // readers of the previous sum are done
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared[w];
  return sum;
}

// Exclusive prefix sum over the block's threads.
template <typename T>
__device__ T ExclusiveSum(T x, T* shared) {
  T inclusive = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T left = __shfl_up_sync(~0u, inclusive, step);
    if (threadIdx.x % 32 >= step) inclusive += left;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 31) shared[threadIdx.x / 32] = inclusive;
  __syncthreads();
  T before = inclusive - x;
  for (int w = 0; w < threadIdx.x / 32; ++w) before += shared[w];
  return before;
}

struct Best {
  float value;
  int32_t id;
};
__device__ Best MaxOf(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

struct Shared {
  double sums[kWarps];
  int32_t counts[kWarps];
  Best best[kWarps];
  int32_t token;
};

// The mask of a row; null: every token is allowed.
__device__ const uint32_t* MaskOf(const kernels::SampleParams& p, int64_t row) {
  if (p.mask_rows == nullptr || p.mask_rows[row] < 0) return nullptr;
  return p.masks + p.mask_rows[row] * ((p.vocab + 31) / 32);
}
__device__ bool Allows(const uint32_t* mask, int64_t token) {
  return mask == nullptr || (mask[token / 32] >> (token % 32) & 1) != 0;
}

// The largest logit of an allowed token. `finite`: whether all logits are finite, allowed or not.
__device__ Best Largest(const float* logits, const uint32_t* mask, int64_t vocab, Shared& shared,
                        bool* finite) {
  Best best{-FLT_MAX, INT32_MAX};
  int32_t bad = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    bad += !isfinite(logits[i]);
    if (Allows(mask, i)) best = MaxOf(best, {logits[i], static_cast<int32_t>(i)});
  }
  *finite = BlockSum(bad, shared.counts) == 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    best =
        MaxOf(best, {__shfl_xor_sync(~0u, best.value, step), __shfl_xor_sync(~0u, best.id, step)});
  if (threadIdx.x % 32 == 0) shared.best[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) best = MaxOf(best, shared.best[w]);
  return best;
}

// A thread's range of the row: contiguous ids, so that sums are in id order.
struct Run {
  int64_t begin, end;
};
__device__ Run RunOf(int64_t vocab) {
  const int64_t length = (vocab + kThreads - 1) / kThreads;
  const int64_t begin = min(vocab, threadIdx.x * length);
  return {begin, min(vocab, begin + length)};
}

// The filters keep weights above `weight`, and the first `ties` of those equal to it.
struct SamplingThreshold {
  float weight;
  int64_t ties;
};

// Tokens are ordered by descending weight, then ascending id. A token is kept if fewer than top_k
// tokens precede it and their mass is at most top_p of the total. The weight threshold is found by
// bisection over float bits: the bit patterns of positive floats are ordered as their values.
__device__ SamplingThreshold Filter(const float* weights, int64_t vocab, double total,
                                    const kernels::RowSampling& sampling, Shared& shared) {
  const float least = fmaxf(FLT_MIN, fminf(sampling.min_p, 1.0f));
  const bool by_count = sampling.top_k > 0 && sampling.top_k < vocab,
             by_mass = sampling.top_p < 1.0f;
  if (!by_count && !by_mass) return {least, vocab};
  const int32_t most = by_count ? sampling.top_k : INT32_MAX;
  const double mass = by_mass ? sampling.top_p * total : DBL_MAX;
  const Run run = RunOf(vocab);
  const auto above = [&](uint32_t bits, int32_t* count) {
    const float bound = __uint_as_float(bits);
    int32_t n = 0;
    double sum = 0.0;
    for (int64_t i = run.begin; i < run.end; ++i)
      if (weights[i] > bound) {
        ++n;
        sum += weights[i];
      }
    *count = BlockSum(n, shared.counts);
    return BlockSum(sum, shared.sums);
  };
  // The smallest bound such that fewer than `most` tokens are above it, and their weights sum to at
  // most `mass`. Of the tokens whose weight equals this bound, some can be kept.
  uint32_t low = 0, high = __float_as_uint(1.0f);
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    int32_t count;
    const double sum = above(middle, &count);
    if (count < most && sum <= mass) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const float weight = __uint_as_float(high);
  if (weight < least) return {least, vocab};
  int32_t count;
  const double before = above(high, &count);
  int64_t ties = most - count;
  if (by_mass) ties = min(ties, static_cast<int64_t>((mass - before) / weight) + 1);
  return {weight, ties};
}

// The first kept token, in id order, at which the running sum of kept weights exceeds the target.
__device__ int32_t Pick(const float* weights, int64_t vocab, SamplingThreshold kept, double uniform,
                        Shared& shared) {
  const Run run = RunOf(vocab);
  int32_t ties = 0;
  for (int64_t i = run.begin; i < run.end; ++i) ties += weights[i] == kept.weight;
  const int64_t ties_before = ExclusiveSum(ties, shared.counts);
  const auto each = [&](const auto& body) {
    int64_t tie = ties_before;
    for (int64_t i = run.begin; i < run.end; ++i) {
      const float w = weights[i];
      if (w > kept.weight || (w == kept.weight && tie < kept.ties)) body(i, w);
      tie += w == kept.weight;
    }
  };
  double mine = 0.0;
  int64_t last = -1;
  each([&](int64_t i, float w) {
    mine += w;
    last = i;
  });
  const double target = uniform * BlockSum(mine, shared.sums);
  const double before = ExclusiveSum(mine, shared.sums);
  if (threadIdx.x == 0) shared.token = -1;
  __syncthreads();
  // Fallback if rounding puts the target at the end: the last kept token.
  atomicMax(&shared.token, static_cast<int32_t>(last));
  __syncthreads();
  const int32_t very_last = shared.token;
  __syncthreads();
  if (threadIdx.x == 0) shared.token = INT32_MAX;
  __syncthreads();
  if (before + mine > target) {
    double below = before;
    int64_t found = -1;
    each([&](int64_t i, float w) {
      below += w;
      if (found < 0 && below > target) found = i;
    });
    if (found >= 0) atomicMin(&shared.token, static_cast<int32_t>(found));
  }
  __syncthreads();
  return shared.token == INT32_MAX ? very_last : shared.token;
}

__global__ void __launch_bounds__(kThreads) SampleKernel(kernels::SampleParams p) {
  __shared__ Shared shared;
  const int64_t row = blockIdx.x;
  const float* logits = p.logits + row * p.vocab;
  float* weights = p.weights + row * p.vocab;
  const kernels::RowSampling sampling = p.sampling[row];
  const uint32_t* mask = MaskOf(p, row);
  bool finite;
  const Best best = Largest(logits, mask, p.vocab, shared, &finite);
  int32_t token = best.id;
  if (finite && sampling.temperature > 0.0f) {
    const Run run = RunOf(p.vocab);
    const float scale = 1.0f / sampling.temperature;
    double sum = 0.0;
    for (int64_t i = run.begin; i < run.end; ++i) {
      // The filters never keep a weight of 0.
      weights[i] = Allows(mask, i) ? expf((logits[i] - best.value) * scale) : 0.0f;
      sum += weights[i];
    }
    const double total = BlockSum(sum, shared.sums);
    const SamplingThreshold kept = Filter(weights, p.vocab, total, sampling, shared);
    token = Pick(weights, p.vocab, kept, sampling.uniform, shared);
  }
  if (threadIdx.x != 0) return;
  if (finite && p.ids != nullptr) token = p.ids[token];
  p.tokens[row] = finite ? token : -1;
}

}  // namespace

cudaError_t SampleTokens(const kernels::SampleParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  SampleKernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
