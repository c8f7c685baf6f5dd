// kernels::Activation on one and on four elements.
#pragma once

#include "kernels/cuda/ops_activation.h"

namespace switchyard::cuda::ops {

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float Activated(const ActivationArg& act, float gate, float up) {
  if (act.kind == kernels::Activation::kSwiGlu) return gate * Sigmoid(gate) * up;
  // These comparisons propagate NaN.
  const float g = gate > act.limit ? act.limit : gate;
  const float u = up > act.limit ? act.limit : up < -act.limit ? -act.limit : up;
  return g * Sigmoid(act.alpha * g) * (u + 1.0f);
}

__device__ __forceinline__ float4 Activated(const ActivationArg& act, float4 gate, float4 up) {
  return {Activated(act, gate.x, up.x), Activated(act, gate.y, up.y), Activated(act, gate.z, up.z),
          Activated(act, gate.w, up.w)};
}

}  // namespace switchyard::cuda::ops
