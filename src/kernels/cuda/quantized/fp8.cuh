// e4m3 quantization of rows with one float32 scale per 128 elements: the same scales and codes as
// quant/fp8.h, bit for bit.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/device/warp.cuh"

namespace switchyard::cuda {

// The bits of |x|, which compare as magnitudes; NaN compares as the largest.
__device__ __forceinline__ int MagnitudeBits(float x) { return __float_as_int(x) & 0x7fffffff; }

__device__ __forceinline__ int LargestOf(float4 v) {
  return max(max(MagnitudeBits(v.x), MagnitudeBits(v.y)),
             max(MagnitudeBits(v.z), MagnitudeBits(v.w)));
}

// Fp8Scale of a group whose largest magnitude has these bits.
__device__ __forceinline__ float Fp8ScaleOf(int largest) {
  constexpr float kSmallestScale = 0x1p-64f;
  float scale = __fdiv_rn(__int_as_float(largest), 448.0f);
  scale = scale < kSmallestScale ? kSmallestScale : scale;
  return __uint_as_float((__float_as_uint(scale) + 8u) & ~15u);
}

// Encodes four already scaled elements, the first in the lowest byte.
__device__ __forceinline__ uint32_t EncodeFp8(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// Quantizes a warp's 128 elements, four per lane. Lanes past the row's end hold zeros.
struct Fp8Four {
  uint32_t codes;
  float scale;
};
__device__ __forceinline__ Fp8Four QuantizeFour(float4 x) {
  const float scale = Fp8ScaleOf(WarpMax(LargestOf(x)));
  const float inverse = __fdiv_rn(1.0f, scale);
  return {EncodeFp8(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse), scale};
}

__device__ __forceinline__ float DecodeFp8(uint32_t code) {
  return __half2float(
      __half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code & 0xff), __NV_E4M3)));
}

}  // namespace switchyard::cuda
