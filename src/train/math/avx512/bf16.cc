// Compiled for AVX512_BF16 too, which not every CPU with AVX-512 has: ActivePairLeaves asks.
#include <immintrin.h>

#include "kernels/cpu/avx512/vec.h"
#include "train/math/leaves_of.h"
#include "train/math/pair_leaves.h"

namespace switchyard::train::avx512 {
namespace {

// Floats that hold pairs.
struct PairVec : kernels::cpu::avx512::Vec {
  // In place: from the intrinsic GCC 12 makes copies of the sums and spills them.
  static F Fma(F x, F b, F sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(x));
    return sum;
  }
};

__mmask16 First(int64_t n) {
  return n >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << (n > 0 ? n : 0)) - 1);
}

// Tensors lie in the third cache: asked for so many floats ahead.
constexpr int64_t kAhead = 512;

__m512i Rounded(__m512 first, __m512 second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

void RoundRow(const float* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __builtin_prefetch(in + i + kAhead);
    __builtin_prefetch(in + i + kAhead + 16);
    const __m512i pairs = Rounded(_mm512_loadu_ps(in + i), _mm512_loadu_ps(in + i + 16));
    _mm512_storeu_si512(out + i / 2, _mm512_rol_epi32(pairs, 16));  // the first to the upper half
  }
  if (const int64_t left = n - i; left > 0) {
    const __m512 low = _mm512_maskz_loadu_ps(First(left), in + i);
    const __m512 high =
        left > 16 ? _mm512_maskz_loadu_ps(First(left - 16), in + i + 16) : _mm512_setzero_ps();
    _mm512_mask_storeu_epi32(out + i / 2, First((left + 1) / 2),
                             _mm512_rol_epi32(Rounded(low, high), 16));
  }
}

void PairRows(const float* first, const float* second, int64_t n, float* out) {
  __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  // Words 2 j and 2 j + 1 of the result are words j and 16 + j of what the rounding gives.
  order =
      _mm512_or_si512(order, _mm512_slli_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(16)), 16));
  for (int64_t j = 0; j < kPanel; j += 16) {
    const __mmask16 mask = First(n - j);
    const __m512 upper = _mm512_maskz_loadu_ps(mask, first + j);
    const __m512 lower = _mm512_maskz_loadu_ps(second == nullptr ? __mmask16{0} : mask,
                                               (second == nullptr ? first : second) + j);
    _mm512_storeu_si512(out + j, _mm512_permutexvar_epi16(order, Rounded(lower, upper)));
  }
}

}  // namespace

const PairLeaves kPairLeaves = {
    .multiply = simd::Multiply<PairVec, 6, 4>, .round_row = RoundRow, .pair_rows = PairRows};

}  // namespace switchyard::train::avx512
