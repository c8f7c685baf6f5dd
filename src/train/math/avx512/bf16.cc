// Compiled for AVX-512 with AVX512_BF16. Not every CPU with AVX-512 has AVX512_BF16, so
// ActivePairKernels checks the CPU.
#include <immintrin.h>

#include "kernels/cpu/avx512/vec.h"
#include "train/math/kernel_table.h"
#include "train/math/simd_kernels.h"

namespace switchyard::train::avx512 {
namespace {

// The vector type for ProductTask with pairs: each lane holds two bfloat16 in the bits of a float.
struct PairVec : kernels::cpu::avx512::Vec {
  // Inline assembly, because GCC 12 copies the accumulators of the intrinsic and spills them.
  static F Fma(F x, F b, F sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(x));
    return sum;
  }
};

__mmask16 First(int64_t n) {
  return n >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << (n > 0 ? n : 0)) - 1);
}

// Software prefetch, in whole rows, this many floats ahead. It is needed because the tensors are in
// the L3 cache, and the hardware prefetcher does not detect the strided rows of a head or panel.
constexpr int64_t kAhead = 1024;
int64_t RowsAhead(int64_t n) { return 1 + kAhead / (n > 0 ? n : 1); }
void Fetch(const float* in, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(in + i);
}

__m512i Rounded(__m512 first, __m512 second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

void RoundRow(const float* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i pairs = Rounded(_mm512_loadu_ps(in + i), _mm512_loadu_ps(in + i + 16));
    // Puts the first element of each pair in the upper half.
    _mm512_storeu_si512(out + i / 2, _mm512_rol_epi32(pairs, 16));
  }
  if (const int64_t left = n - i; left > 0) {
    const __m512 low = _mm512_maskz_loadu_ps(First(left), in + i);
    const __m512 high =
        left > 16 ? _mm512_maskz_loadu_ps(First(left - 16), in + i + 16) : _mm512_setzero_ps();
    _mm512_mask_storeu_epi32(out + i / 2, First((left + 1) / 2),
                             _mm512_rol_epi32(Rounded(low, high), 16));
  }
}

void RoundRows(const float* in, int64_t row, int64_t n, int64_t d, float* out, int64_t out_row) {
  const int64_t ahead = RowsAhead(d) * row;
  for (int64_t i = 0; i < n; ++i, in += row, out += out_row) {
    Fetch(in + ahead, d);
    RoundRow(in, d, out);
  }
}

// Writes one row of pairs, padded with zeros to whole panels.
template <bool kSecond>
[[gnu::always_inline]] inline void PairRow(const float* first, const float* second, int64_t d,
                                           __m512i order, float* out) {
  int64_t j = 0;
  for (; j + 16 <= d; j += 16) {
    const __m512 lower = kSecond ? _mm512_loadu_ps(second + j) : _mm512_setzero_ps();
    const __m512i both = Rounded(lower, _mm512_loadu_ps(first + j));
    _mm512_storeu_si512(out + j, _mm512_permutexvar_epi16(order, both));
  }
  for (; j < d || j % kPanel != 0; j += 16) {
    const __mmask16 mask = First(d - j);
    const __m512 upper = _mm512_maskz_loadu_ps(mask, first + j);
    const __m512 lower = kSecond ? _mm512_maskz_loadu_ps(mask, second + j) : _mm512_setzero_ps();
    _mm512_storeu_si512(out + j, _mm512_permutexvar_epi16(order, Rounded(lower, upper)));
  }
}

void PairRows(const float* in, int64_t row, int64_t n, int64_t d, float* out, int64_t out_row) {
  __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  // 16-bit words 2 j and 2 j + 1 of the result are words j and 16 + j of the rounded vector.
  order =
      _mm512_or_si512(order, _mm512_slli_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(16)), 16));
  const int64_t ahead = RowsAhead(d) * row;
  for (; n > 1; n -= 2, in += 2 * row, out += out_row) {
    Fetch(in + ahead, d);
    Fetch(in + ahead + row, d);
    PairRow<true>(in, in + row, d, order, out);
  }
  if (n == 1) PairRow<false>(in, nullptr, d, order, out);
}

}  // namespace

const PairKernels kPairKernels = {
    .multiply = simd::Multiply<PairVec, 6, 4>, .round_rows = RoundRows, .pair_rows = PairRows};

}  // namespace switchyard::train::avx512
