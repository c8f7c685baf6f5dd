// One pair of a rotary embedding, with the same rounding in every kernel.
#pragma once

namespace switchyard::cuda::ops {

__device__ __forceinline__ void Rotate(float* a, float* b, float cosine, float sine) {
  const float va = *a, vb = *b;
  *a = __fmaf_rn(va, cosine, -__fmul_rn(vb, sine));
  *b = __fmaf_rn(va, sine, __fmul_rn(vb, cosine));
}

}  // namespace switchyard::cuda::ops
