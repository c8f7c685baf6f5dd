// Four adjacent row elements in registers, for every storage type.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/fp8.cuh"

namespace switchyard::cuda {

__device__ __forceinline__ float4 LoadFour(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
__device__ __forceinline__ float4 LoadFour(const __nv_bfloat16* p) {
  const uint2 bits = *reinterpret_cast<const uint2*>(p);
  return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
          __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)};
}
__device__ __forceinline__ float4 DecodeFour(uint32_t codes, float scale) {
  return {DecodeFp8(codes) * scale, DecodeFp8(codes >> 8) * scale, DecodeFp8(codes >> 16) * scale,
          DecodeFp8(codes >> 24) * scale};
}

__device__ __forceinline__ void StoreFour(float* p, float4 x) { *reinterpret_cast<float4*>(p) = x; }
__device__ __forceinline__ void StoreFour(__nv_bfloat16* p, float4 x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  *reinterpret_cast<uint2*>(p) = {reinterpret_cast<const uint32_t&>(low),
                                  reinterpret_cast<const uint32_t&>(high)};
}

__device__ __forceinline__ float4 RoundToBf16(float4 x) {
  return {__bfloat162float(__float2bfloat16_rn(x.x)), __bfloat162float(__float2bfloat16_rn(x.y)),
          __bfloat162float(__float2bfloat16_rn(x.z)), __bfloat162float(__float2bfloat16_rn(x.w))};
}

}  // namespace switchyard::cuda
