// Loading, rounding and packing of row elements in registers, 16 bytes per lane. Bit-identical to
// moe/rows.h and quant/fp8.h (except for the sign of NaN codes).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "moe/cuda/dispatchers/exchange_launch.h"

namespace switchyard::cuda {

template <RowKind kKind>
struct Packing {
  static constexpr int kElementBytes = kKind == RowKind::kF32 ? 4 : kKind == RowKind::kBF16 ? 2 : 1;
  static constexpr int kElements = 16 / kElementBytes;  // per lane
};

// Loads x[i] from 16-byte aligned input.
template <int kCount>
__device__ __forceinline__ void LoadElements(const float* x, float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 quad = *reinterpret_cast<const float4*>(x + i);
    values[i] = quad.x;
    values[i + 1] = quad.y;
    values[i + 2] = quad.z;
    values[i + 3] = quad.w;
  }
}

__device__ __forceinline__ void UnpackBF16(uint32_t pair, float* values) {
  values[0] = __uint_as_float(pair << 16);
  values[1] = __uint_as_float(pair & 0xffff0000u);
}

template <int kCount>
__device__ __forceinline__ void LoadElements(const __nv_bfloat16* x, float (&values)[kCount]) {
  if constexpr (kCount == 4) {
    const uint2 words = *reinterpret_cast<const uint2*>(x);
    UnpackBF16(words.x, values);
    UnpackBF16(words.y, values + 2);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 8) {
      const uint4 words = *reinterpret_cast<const uint4*>(x + i);
      UnpackBF16(words.x, values + i);
      UnpackBF16(words.y, values + i + 2);
      UnpackBF16(words.z, values + i + 4);
      UnpackBF16(words.w, values + i + 6);
    }
  }
}

// Unpacks 16 bytes of a row to float32.
__device__ __forceinline__ void Unpack(uint4 words, float (&values)[4]) {
  values[0] = __uint_as_float(words.x);
  values[1] = __uint_as_float(words.y);
  values[2] = __uint_as_float(words.z);
  values[3] = __uint_as_float(words.w);
}
__device__ __forceinline__ void Unpack(uint4 words, float (&values)[8]) {
  UnpackBF16(words.x, values);
  UnpackBF16(words.y, values + 2);
  UnpackBF16(words.z, values + 4);
  UnpackBF16(words.w, values + 6);
}

// Rounds to nearest even. A NaN keeps its upper bits, as in rows.cc.
__device__ __forceinline__ uint32_t BF16Bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (x != x ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
__device__ __forceinline__ uint32_t PackBF16(float low, float high) {
  return BF16Bits(low) | BF16Bits(high) << 16;
}

__device__ __forceinline__ uint4 Pack(const float (&v)[4]) {
  return {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
          __float_as_uint(v[3])};
}
__device__ __forceinline__ uint4 Pack(const float (&v)[8]) {
  return {PackBF16(v[0], v[1]), PackBF16(v[2], v[3]), PackBF16(v[4], v[5]), PackBF16(v[6], v[7])};
}

// The scale of a group (quant/fp8.cc: ScaleOf). `largest`: the bits of the group's largest
// magnitude. Bit patterns of magnitudes have the same order as the magnitudes. A NaN keeps its
// bits; GPU arithmetic would canonicalize them.
__device__ __forceinline__ float Fp8GroupScale(uint32_t largest) {
  constexpr uint32_t kSmallest = 0x1f800000u;  // 2^-64
  uint32_t bits = max(__float_as_uint(__fdiv_rn(__uint_as_float(largest), 448.0f)), kSmallest);
  if (largest > 0x7f800000u) bits = largest | 0x400000u;
  return __uint_as_float((bits + 8u) & ~15u);
}

__device__ __forceinline__ uint32_t PackFp8(float a, float b, float c, float d, float inverse) {
  const float2 low = {__fmul_rn(a, inverse), __fmul_rn(b, inverse)};
  const float2 high = {__fmul_rn(c, inverse), __fmul_rn(d, inverse)};
  return static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, __NV_E4M3)) |
         static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, __NV_E4M3)) << 16;
}

// Quantizes 16 elements per lane. Eight adjacent lanes hold a group of 128 and receive its scale.
// All lanes of the warp call it.
__device__ __forceinline__ uint4 PackFp8Group(const float (&v)[16], float* scale) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll
  for (int step = 1; step < 8; step *= 2)
    largest = max(largest, __shfl_xor_sync(~0u, largest, step));
  *scale = Fp8GroupScale(largest);
  const float inverse = __frcp_rn(*scale);
  return {PackFp8(v[0], v[1], v[2], v[3], inverse), PackFp8(v[4], v[5], v[6], v[7], inverse),
          PackFp8(v[8], v[9], v[10], v[11], inverse), PackFp8(v[12], v[13], v[14], v[15], inverse)};
}

}  // namespace switchyard::cuda
