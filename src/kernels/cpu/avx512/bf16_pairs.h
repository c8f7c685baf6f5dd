// Instructions of AVX512_BF16, which are written out: files need no flag of their own for them.
#pragma once

#include <immintrin.h>

namespace switchyard::kernels::cpu::avx512 {

// sum += w · x over pairs of bfloat16, in place: from the intrinsic GCC 12 makes copies of the sums
// and spills them.
[[gnu::always_inline]] inline void AddPairs(__m512& sum, __m512i w, __m512i x) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

// Sixteen floats to the nearest bfloat16, even where two are as near; what is too small to be
// normal becomes zero.
[[gnu::always_inline]] inline __m256i RoundToBF16(__m512 x) {
  __m256i out;
  asm("vcvtneps2bf16 %1, %0" : "=v"(out) : "v"(x));
  return out;
}

}  // namespace switchyard::kernels::cpu::avx512
