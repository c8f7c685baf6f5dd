// AVX512_BF16 instructions as inline assembly, so that files need no compiler flag for them.
#pragma once

#include <immintrin.h>

namespace switchyard::kernels::cpu::avx512 {

// sum += w · x over bfloat16 pairs, in place: with the intrinsic, GCC 12 copies the sums and spills
// them.
[[gnu::always_inline]] inline void AddPairs(__m512& sum, __m512i w, __m512i x) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

// Rounds sixteen floats to bfloat16, ties to even. Subnormal inputs become zero.
[[gnu::always_inline]] inline __m256i RoundToBF16(__m512 x) {
  __m256i out;
  asm("vcvtneps2bf16 %1, %0" : "=v"(out) : "v"(x));
  return out;
}

}  // namespace switchyard::kernels::cpu::avx512
