// How results of successive splits of the keys become one: always in the order of the splits and
// with these roundings, in registers or by the kernel that merges.
#pragma once

#include <cmath>

#include "kernels/cuda/attention_ptx.cuh"

namespace switchyard::cuda {

constexpr float kLog2E = 1.4426950408889634f;

// Of a softmax over some keys: largest score (times log2 e) and the sum of 2^(score − max). Starts
// as that of no keys.
struct SoftmaxState {
  float max = -INFINITY, sum = 0.0f;
};

// What the results before and the new ones are multiplied with.
struct FoldFactors {
  float before, part;
};

// Adding a part that saw no key changes no bit.
__device__ __forceinline__ FoldFactors Fold(SoftmaxState& state, const SoftmaxState& part) {
  const float max = fmaxf(state.max, part.max), base = max == -INFINITY ? 0.0f : max;
  const FoldFactors f = {ptx::Exp2(state.max - base), ptx::Exp2(part.max - base)};
  state.max = max;
  state.sum = fmaf(part.sum, f.part, __fmul_rn(state.sum, f.before));
  return f;
}
__device__ __forceinline__ float Fold(const FoldFactors& f, float before, float part) {
  return fmaf(part, f.part, __fmul_rn(before, f.before));
}

// What the sum of values is multiplied with at last. `sink`: a further logit of the softmax, or
// null.
__device__ __forceinline__ float FinalFactor(SoftmaxState state, const float* sink) {
  FoldFactors f = {1.0f, 0.0f};
  if (sink) f = Fold(state, {.max = __fmul_rn(*sink, kLog2E), .sum = 1.0f});
  return __fdiv_rn(f.before, state.sum);
}

}  // namespace switchyard::cuda
