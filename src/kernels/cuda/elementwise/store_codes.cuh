// Encoding of rows of an e4m3 cache.
#pragma once

#include "kernels/cuda/quantized/fp8.cuh"

namespace switchyard::cuda::ops {

// The codes of four elements divided by a scale, the first in the lowest byte: EncodeFp8 of
// quant/fp8.h, bit for bit.
__device__ __forceinline__ uint32_t CodesOf(float4 v, float scale) {
  const float inverse = __fdiv_rn(1.0f, scale);
  return EncodeFp8(__fmul_rn(v.x, inverse), __fmul_rn(v.y, inverse), __fmul_rn(v.z, inverse),
                   __fmul_rn(v.w, inverse));
}

}  // namespace switchyard::cuda::ops
