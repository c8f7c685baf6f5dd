// Problem: the K largest logits of each row [rows, vocab], with the row's sum of exponentials.
// Tiling: one block of 1024 threads per row. The elements of a thread are a column: its index, and
// those 1024, 2048, … after it.
// Pipeline: one pass finds the best of each column. Then K rounds take the best of all columns, and
// the warp of that column finds the next one in it. A second pass adds up exponentials, in the
// order of the CPU (kernels/exp_sum.h). Measured: not measured yet.
#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/elementwise/sample.h"
#include "kernels/exp_sum.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
static_assert(kWarps == 32, "BlockBest reads the result of each warp with one lane");

// Orders elements by descending logit, then ascending index: a better element has a larger key.
using Key = unsigned long long;
constexpr Key kNoKey = 0;  // below the key of any element

__device__ Key KeyOf(float logit, int64_t index) {
  const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);  // −0 equals 0
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return Key{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}
__device__ int64_t IndexOf(Key key) { return 0xffffffffu - static_cast<uint32_t>(key); }

// The largest key of the block, returned to all threads.
__device__ Key BlockBest(Key key, Key* shared) {
  key = WarpMax(key);
  __syncthreads();  // readers of the previous result are done
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = key;
  __syncthreads();
  return WarpMax(shared[threadIdx.x % 32]);
}

// The best element of a column after the element of key `last`. The threads of a warp call it
// together.
__device__ Key NextInColumn(const float* logits, int64_t vocab, int column, Key last) {
  Key best = kNoKey;
  for (int64_t i = column + int64_t{threadIdx.x % 32} * kThreads; i < vocab; i += 32 * kThreads) {
    const Key key = KeyOf(logits[i], i);
    if (key < last) best = max(best, key);
  }
  return WarpMax(best);
}

struct ExpShared {
  float lanes[kThreads];           // sums of the lanes of some chunks, in their order
  float tail[kernels::kExpBlock];  // exponentials of the values after the last whole block
};

// kernels::ExpSum. The result is valid in thread 0.
__device__ double ExpSumOfRow(const float* logits, int64_t vocab, float max, ExpShared& shared) {
  constexpr int kLanes = kernels::kExpLanes;
  constexpr int64_t kChunk = kernels::kExpChunk, kChunksAtOnce = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const auto exp_of = [&](int64_t i) {
    return kernels::ExpOfNonPositive(__fadd_rn(logits[i], -max));
  };
  const int64_t whole = vocab / kernels::kExpBlock * kernels::kExpBlock;
  const int64_t full = whole / kChunk;  // chunks; the last chunk, which may be empty, follows
  const int tail = static_cast<int>(vocab - whole);
  if (thread < tail) shared.tail[thread] = exp_of(whole + thread);
  double total = 0.0;
  for (int64_t first = 0; first <= full; first += kChunksAtOnce) {
    const int64_t begin = (first + thread / kLanes) * kChunk;
    const int64_t end = min(begin + kChunk, whole);
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t i = begin + thread % kLanes; i < end; i += kLanes) sum = __fadd_rn(sum, exp_of(i));
    shared.lanes[thread] = sum;
    __syncthreads();
    if (thread == 0) {
      const auto of_full = static_cast<int>(min(full - first, kChunksAtOnce) * kLanes);
      for (int i = 0; i < of_full; ++i) total += shared.lanes[i];
      if (full - first < kChunksAtOnce) {
        for (int i = 0; i < tail; ++i) total += shared.tail[i];
        for (int i = 0; i < kLanes; ++i) total += shared.lanes[of_full + i];
      }
    }
    __syncthreads();
  }
  return total;
}

__global__ void __launch_bounds__(kThreads) BestTokensKernel(kernels::BestTokensParams p) {
  __shared__ Key keys[kWarps];
  __shared__ ExpShared exps;
  const int64_t row = blockIdx.x;
  const float* const logits = p.logits + row * p.vocab;
  kernels::BestToken* const best = p.best + row * p.count;
  const int thread = static_cast<int>(threadIdx.x);
  Key mine = kNoKey;  // the best element of this thread's column that is not taken yet
  int bad = 0;
  for (int64_t i = thread; i < p.vocab; i += kThreads) {
    const float logit = logits[i];
    bad |= !isfinite(logit);
    mine = max(mine, KeyOf(logit, i));
  }
  if (__syncthreads_or(bad) != 0) {
    if (thread < p.count) best[thread] = {-1, -INFINITY};
    if (thread == 0) p.exp_sums[row] = 0.0;
    return;
  }
  float largest = 0.0f;
  for (int k = 0; k < p.count; ++k) {
    const Key key = BlockBest(mine, keys);
    if (key == kNoKey) {  // fewer logits than tokens
      if (thread >= k && thread < p.count) best[thread] = {-1, -INFINITY};
      break;
    }
    const int64_t index = IndexOf(key);
    const float logit = logits[index];
    if (k == 0) largest = logit;
    if (thread == 0)
      best[k] = {p.ids == nullptr ? static_cast<int32_t>(index) : p.ids[index], logit};
    const int column = static_cast<int>(index % kThreads);
    if (thread / 32 != column / 32) continue;
    const Key next = NextInColumn(logits, p.vocab, column, key);
    if (thread == column) mine = next;
  }
  const double sum = ExpSumOfRow(logits, p.vocab, largest, exps);
  if (thread == 0) p.exp_sums[row] = sum;
}

}  // namespace

cudaError_t SelectBestTokens(const kernels::BestTokensParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.vocab < 1 || p.vocab > INT32_MAX || p.count < 1 || p.count > kernels::kMostBestTokens)
    return cudaErrorInvalidValue;
  BestTokensKernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace switchyard::cuda
