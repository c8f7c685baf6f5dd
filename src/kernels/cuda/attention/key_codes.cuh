// e4m3 codes of cached keys and values, converted exactly. NaN codes become ±480, as on CPUs.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace switchyard::cuda {

// An element of a cache of e4m3 codes.
struct KeyCode {
  uint8_t bits;
};

// The exponent of e4m3 has the bias 7, those of float32 and bfloat16 have 127. A code's exponent
// and mantissa in their places are a number that is 2^−120 times the value, subnormal or not.
__device__ __forceinline__ float FloatOfCode(KeyCode code) {
  const uint32_t sign = (code.bits & 0x80u) << 24, magnitude = (code.bits & 0x7fu) << 20;
  return __fmul_rn(__uint_as_float(sign | magnitude), 0x1p120f);
}

// Two codes, in the upper bytes of the two halves of `bytes`. The lower bytes have no effect.
__device__ __forceinline__ uint32_t Bf16OfCodePair(uint32_t bytes) {
  constexpr uint32_t kFactor = 0x7b807b80;  // 2^120, twice
  const uint32_t bits = (bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u);
  const __nv_bfloat162 pair = __hmul2(reinterpret_cast<const __nv_bfloat162&>(bits),
                                      reinterpret_cast<const __nv_bfloat162&>(kFactor));
  return reinterpret_cast<const uint32_t&>(pair);
}
// Four codes, the first in the lowest byte.
__device__ __forceinline__ uint2 Bf16OfCodes(uint32_t codes) {
  return {Bf16OfCodePair(__byte_perm(codes, 0, 0x1404)),
          Bf16OfCodePair(__byte_perm(codes, 0, 0x3424))};
}

}  // namespace switchyard::cuda
