// AVX-512 vector of sixteen floats: the operations used by the templates in cpu/simd.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace switchyard::kernels::cpu::avx512 {

struct Vec {
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 6;    // activation rows of a register tile (with 4 weight rows)
  static constexpr int kDirectRows = 6;  // x rows per tile with unpacked weights
  static constexpr int kWideRows =
      6;  // tiles of up to 6 rows of x have 4 weight rows, larger ones 2
  static constexpr int kSingleRowCols = 1;  // weight rows of a tile with one row of x
  static constexpr int kQueryRows = 4;      // query rows per tile of the weighted sum of values

  static __mmask16 First(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set1(float x) { return _mm512_set1_ps(x); }
  static F Pairs(float a, float b) { return _mm512_unpacklo_ps(Set1(a), Set1(b)); }  // a, b, a, …
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static F LoadN(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(First(n), p); }
  static void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void StoreN(float* p, F x, int64_t n) { _mm512_mask_storeu_ps(p, First(n), x); }

  // Keeps x in a register: stops the compiler from reloading it for each use.
  static void Hold(F& x) { asm("" : "+v"(x)); }

  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }  // b when either is NaN
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }  // b when either is NaN
  static F RoundToInt(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
  // x · 2^n for an integer n in the normal range.
  static F ScaleByPower(F x, F n) {
    const __m512i bits =
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    return Mul(x, _mm512_castsi512_ps(bits));
  }
  // x if test >= limit or test is NaN, else 0.
  static F ZeroBelow(F x, F test, F limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, limit, _CMP_NLT_UQ), x);
  }
  // KeepFirst: the first n lanes from x, the rest from `other`. KeepFrom: the reverse.
  static F KeepFirst(F x, int64_t n, F other) { return _mm512_mask_mov_ps(other, First(n), x); }
  static F KeepFrom(F x, int64_t n, F other) { return _mm512_mask_mov_ps(x, First(n), other); }

  // Horizontal sums: lanes i and i + 8, then i and i + 4, then i and i + 2, then the last pair.
  // Both functions use this order, so they agree bit for bit.
  static float ReduceAdd(F x) {
    float sums[4];
    ReduceAdd4(x, x, x, x, sums);
    return sums[0];
  }
  static void ReduceAdd4(F a, F b, F c, F d, float* sums) {
    const F ab = Add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const F cd = Add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    // The 128-bit lanes of abcd hold partial sums of a, b, c and d.
    const F abcd = Add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const F pairs = Add(abcd, _mm512_shuffle_ps(abcd, abcd, 0x4e));
    const F total = Add(pairs, _mm512_shuffle_ps(pairs, pairs, 0xb1));
    const __m512i heads = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_permutexvar_ps(heads, total)));
  }
  // Sums of sixteen vectors, in their order, with the bits of ReduceAdd. Takes less than half as
  // long as four calls of ReduceAdd4.
  static F ReduceAdd16(const F (&x)[kLanes]) {
    F lanes[4];  // 128-bit lane l of lanes[i]: partial sums of x[4 · l + i]
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const F ab = Add(_mm512_shuffle_f32x4(x[i], x[4 + i], 0x44),
                       _mm512_shuffle_f32x4(x[i], x[4 + i], 0xee));
      const F cd = Add(_mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x44),
                       _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xee));
      lanes[i] = Add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    }
    const auto halve = [](F a, F b) __attribute__((always_inline)) {
      return Add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    };
    const F low = halve(lanes[0], lanes[1]), high = halve(lanes[2], lanes[3]);
    return Add(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd));
  }
  static float FirstLane(F x) { return _mm512_cvtss_f32(x); }
  static float ReduceMax(F x) { return _mm512_reduce_max_ps(x); }

  // In-place transpose of 16 × 16 floats.
  static void Transpose(F (&x)[kLanes]) {
    __m512d t[kLanes];
    for (int i = 0; i < kLanes; i += 4) {
      const __m512d ab = _mm512_castps_pd(_mm512_unpacklo_ps(x[i], x[i + 1]));
      const __m512d cd = _mm512_castps_pd(_mm512_unpacklo_ps(x[i + 2], x[i + 3]));
      const __m512d ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(x[i], x[i + 1]));
      const __m512d cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(x[i + 2], x[i + 3]));
      t[i] = _mm512_unpacklo_pd(ab, cd);
      t[i + 1] = _mm512_unpackhi_pd(ab, cd);
      t[i + 2] = _mm512_unpacklo_pd(ab_high, cd_high);
      t[i + 3] = _mm512_unpackhi_pd(ab_high, cd_high);
    }
    // 128-bit lane q of t[4 · g + c] now holds column 4 · q + c of rows 4 · g to 4 · g + 3.
    for (int c = 0; c < 4; ++c) {
      const F low = _mm512_castpd_ps(_mm512_shuffle_f64x2(t[c], t[4 + c], 0x88));
      const F high = _mm512_castpd_ps(_mm512_shuffle_f64x2(t[c], t[4 + c], 0xdd));
      const F low2 = _mm512_castpd_ps(_mm512_shuffle_f64x2(t[8 + c], t[12 + c], 0x88));
      const F high2 = _mm512_castpd_ps(_mm512_shuffle_f64x2(t[8 + c], t[12 + c], 0xdd));
      x[c] = _mm512_shuffle_f32x4(low, low2, 0x88);
      x[4 + c] = _mm512_shuffle_f32x4(high, high2, 0x88);
      x[8 + c] = _mm512_shuffle_f32x4(low, low2, 0xdd);
      x[12 + c] = _mm512_shuffle_f32x4(high, high2, 0xdd);
    }
  }

  static F BF16(const void* p) { return Widen(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  static F BF16N(const void* p, int64_t n) { return Widen(_mm256_maskz_loadu_epi16(First(n), p)); }
  static F F16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static F F16N(const void* p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(First(n), p));
  }
  static void StoreBF16(void* p, F x) { _mm256_storeu_si256(static_cast<__m256i*>(p), Narrow(x)); }
  static void StoreBF16N(void* p, F x, int64_t n) {
    _mm256_mask_storeu_epi16(p, First(n), Narrow(x));
  }
  static void StoreF16(void* p, F x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void StoreF16N(void* p, F x, int64_t n) {
    _mm256_mask_storeu_epi16(p, First(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  // e4m3 codes divided by 256: the code's exponent and mantissa are shifted into a half-precision
  // float, whose exponent bias is 8 larger. NaN codes decode to ±480 / 256.
  static F E4M3Over256(const void* p) {
    return Fp8(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static F E4M3Over256N(const void* p, int64_t n) { return Fp8(_mm_maskz_loadu_epi8(First(n), p)); }

  static F Int8(const void* p) {
    const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }
  static F Int8N(const void* p, int64_t n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(First(n), p)));
  }

  // Sixteen codes from eight bytes, low nibble first: e2m1, and integers 0 to 15.
  static F E2M1(const void* p) {
    const F values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                    -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(Nibbles(p), values);
  }
  static F UInt4(const void* p) {
    const F values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(Nibbles(p), values);
  }

 private:
  // Lane i has nibble i in its low bits; the higher bits hold other nibbles.
  static __m512i Nibbles(const void* p) {
    int32_t low, high;  // two loads on purpose: they broadcast from memory, not across registers
    __builtin_memcpy(&low, p, sizeof(low));
    __builtin_memcpy(&high, static_cast<const char*>(p) + sizeof(low), sizeof(high));
    const __m512i x = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high);
    const __m512i shifts =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    return _mm512_srlv_epi32(x, shifts);
  }
  static F Widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  // Rounds to nearest even; NaN stays NaN.
  static __m256i Narrow(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
  static F Fp8(__m128i codes) {
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
};

}  // namespace switchyard::kernels::cpu::avx512
