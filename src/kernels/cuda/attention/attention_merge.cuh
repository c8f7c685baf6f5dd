// Merge of the partial results that tensor core attention leaves in the scratch buffer.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_schedule.cuh"

namespace switchyard::cuda {

// Merge of partial softmax results of successive key splits (online softmax). Both the merge in
// registers and the merge kernel follow the order of the splits and use the roundings of these
// functions.
constexpr float kLog2E = 1.4426950408889634f;

// The factor of the scores of a key-value head, and of its values.
__device__ __forceinline__ float ScaleOfHead(float scale, const float* scales, int kv_head) {
  return scales != nullptr ? __fmul_rn(scale, scales[kv_head]) : scale;
}
// The factor that gives scores times log2 e. kCodes: the cache has e4m3 codes.
template <bool kCodes>
__device__ __forceinline__ float ScoreScale(const AttentionLaunch& launch, int kv_head) {
  if constexpr (!kCodes) return __fmul_rn(launch.scale, kLog2E);
  return __fmul_rn(ScaleOfHead(launch.scale, launch.k_scales, kv_head), kLog2E);
}
template <bool kCodes>
__device__ __forceinline__ float ValueScale(const AttentionLaunch& launch, int kv_head) {
  if constexpr (!kCodes) return launch.value_scale;
  return ScaleOfHead(launch.value_scale, launch.v_scales, kv_head);
}

// State of a softmax over some keys: the largest score (times log2 e) and the sum of 2^(score −
// max). The initial value is the state of no keys.
struct SoftmaxState {
  float max = -INFINITY, sum = 0.0f;
};

// Rescaling factors of the accumulated result and of the new part.
struct MergeFactors {
  float before, part;
};

// Merges `part` into `state`. A part without visible keys changes no bit of the result.
__device__ __forceinline__ MergeFactors MergeSoftmax(SoftmaxState& state,
                                                     const SoftmaxState& part) {
  const float max = fmaxf(state.max, part.max), base = max == -INFINITY ? 0.0f : max;
  const MergeFactors f = {ptx::Exp2(state.max - base), ptx::Exp2(part.max - base)};
  state.max = max;
  state.sum = fmaf(part.sum, f.part, __fmul_rn(state.sum, f.before));
  return f;
}
__device__ __forceinline__ float MergeSoftmax(const MergeFactors& f, float before, float part) {
  return fmaf(part, f.part, __fmul_rn(before, f.before));
}

// The final factor of the weighted sum of values. `sink`: an additional logit of the softmax, or
// null. `value_scale`: ValueScale of the head.
__device__ __forceinline__ float FinalFactor(SoftmaxState state, const float* sink,
                                             float value_scale) {
  MergeFactors f = {1.0f, 0.0f};
  if (sink) f = MergeSoftmax(state, {.max = __fmul_rn(*sink, kLog2E), .sum = 1.0f});
  return __fmul_rn(__fdiv_rn(f.before, state.sum), value_scale);
}

// Arguments of the tensor core attention kernels and of the merge kernel.
struct TiledAttention {
  AttentionLaunch launch;
  AttentionSchedule schedule;
  float2* states = nullptr;  // [slots, tile rows]: SoftmaxState
  float* parts = nullptr;    // [slots, tile rows, v_dim]
};

// Writes the output rows whose keys were split among work items of `p`; v_dim is a power of two, 64
// to 512.
cudaError_t StartMergeOfParts(const TiledAttention& p, const PdlStream& chain);

}  // namespace switchyard::cuda
