// AVX2, FMA and F16C vector of eight floats: the operations used by the templates in cpu/simd.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace switchyard::kernels::cpu::avx2 {

struct Vec {
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 3;    // activation rows of a register tile (with 4 weight rows)
  static constexpr int kDirectRows = 5;  // x rows per tile with unpacked weights
  static constexpr int kWideRows =
      2;  // tiles of up to 2 rows of x have 4 weight rows, larger ones 2
  static constexpr int kSingleRowCols = 4;  // weight rows per tile of one x row; 1 is latency-bound
  static constexpr int kQueryRows = 2;      // query rows per tile of the weighted sum of values

  static __m256i First(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set1(float x) { return _mm256_set1_ps(x); }
  static F Pairs(float a, float b) { return _mm256_unpacklo_ps(Set1(a), Set1(b)); }  // a, b, a, …
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static F LoadN(const float* p, int64_t n) { return _mm256_maskload_ps(p, First(n)); }
  static void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void StoreN(float* p, F x, int64_t n) { _mm256_maskstore_ps(p, First(n), x); }

  // Keeps x in a register: stops the compiler from reloading it for each use.
  static void Hold(F& x) { asm("" : "+x"(x)); }

  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }  // b when either is NaN
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }  // b when either is NaN
  static F RoundToInt(F x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // x · 2^n for an integer n in the normal range.
  static F ScaleByPower(F x, F n) {
    const __m256i bits =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return Mul(x, _mm256_castsi256_ps(bits));
  }
  // x if test >= limit or test is NaN, else 0.
  static F ZeroBelow(F x, F test, F limit) {
    return _mm256_and_ps(_mm256_cmp_ps(test, limit, _CMP_NLT_UQ), x);
  }
  // KeepFirst: the first n lanes from x, the rest from `other`. KeepFrom: the reverse.
  static F KeepFirst(F x, int64_t n, F other) {
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(First(n)));
  }
  static F KeepFrom(F x, int64_t n, F other) {
    return _mm256_blendv_ps(x, other, _mm256_castsi256_ps(First(n)));
  }

  // Horizontal sums: lanes i and i + 4, then i and i + 2, then the last pair. Both functions use
  // this order, so they agree bit for bit.
  static float ReduceAdd(F x) {
    float sums[4];
    ReduceAdd4(x, x, x, x, sums);
    return sums[0];
  }
  static void ReduceAdd4(F a, F b, F c, F d, float* sums) {
    __m128 fa = Halves(a), fb = Halves(b), fc = Halves(c), fd = Halves(d);
    // Adds lanes 0 and 2, and lanes 1 and 3, of each vector: ab is [a, a, b, b], cd is [c, c, d,
    // d].
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(fa, fb), _mm_movehl_ps(fb, fa));
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(fc, fd), _mm_movehl_ps(fd, fc));
    _mm_storeu_ps(sums, _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd)));
  }
  static float FirstLane(F x) { return _mm256_cvtss_f32(x); }
  static float ReduceMax(F x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }

  // In-place transpose of 8 × 8 floats.
  static void Transpose(F (&x)[kLanes]) {
    F t[kLanes];
    for (int i = 0; i < kLanes; i += 4) {
      const F ab = _mm256_unpacklo_ps(x[i], x[i + 1]), cd = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
      const F ab_high = _mm256_unpackhi_ps(x[i], x[i + 1]);
      const F cd_high = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
      t[i] = _mm256_shuffle_ps(ab, cd, 0x44);
      t[i + 1] = _mm256_shuffle_ps(ab, cd, 0xee);
      t[i + 2] = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
      t[i + 3] = _mm256_shuffle_ps(ab_high, cd_high, 0xee);
    }
    // Half q of t[4 · g + c] now holds column 4 · q + c of rows 4 · g to 4 · g + 3.
    for (int c = 0; c < 4; ++c) {
      x[c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
      x[4 + c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
    }
  }

  static F BF16(const void* p) { return Widen(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
  static F BF16N(const void* p, int64_t n) { return Widen(Partial(p, n * 2)); }
  static F F16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static F F16N(const void* p, int64_t n) { return _mm256_cvtph_ps(Partial(p, n * 2)); }
  static void StoreBF16(void* p, F x) { _mm_storeu_si128(static_cast<__m128i*>(p), Narrow(x)); }
  static void StoreBF16N(void* p, F x, int64_t n) { StorePartial(p, Narrow(x), n * 2); }
  static void StoreF16(void* p, F x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void StoreF16N(void* p, F x, int64_t n) {
    StorePartial(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT), n * 2);
  }

  // e4m3 codes divided by 256: the code's exponent and mantissa are shifted into a half-precision
  // float, whose exponent bias is 8 larger. NaN codes decode to ±480 / 256.
  static F E4M3Over256(const void* p) {
    return Fp8(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  static F E4M3Over256N(const void* p, int64_t n) { return Fp8(Partial(p, n)); }

  static F Int8(const void* p) {
    const __m128i codes = _mm_loadl_epi64(static_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
  }
  static F Int8N(const void* p, int64_t n) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(Partial(p, n)));
  }

  // Eight codes from four bytes, low nibble first: e2m1, and integers 0 to 15.
  static F E2M1(const void* p) {
    const __m256i x = Nibbles(p);
    const F magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(x, 3), 31);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, x), _mm256_castsi256_ps(sign));
  }
  static F UInt4(const void* p) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(Nibbles(p), _mm256_set1_epi32(15)));
  }

 private:
  // Lane i has nibble i in its low bits; the higher bits hold other nibbles.
  static __m256i Nibbles(const void* p) {
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    int32_t codes;
    __builtin_memcpy(&codes, p, sizeof(codes));
    return _mm256_srlv_epi32(_mm256_set1_epi32(codes), shifts);
  }
  static __m128 Halves(F x) {
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  }
  static __m128i Partial(const void* p, int64_t bytes) {
    alignas(16) char buffer[16] = {};
    __builtin_memcpy(buffer, p, bytes);
    return _mm_load_si128(reinterpret_cast<const __m128i*>(buffer));
  }
  static void StorePartial(void* p, __m128i x, int64_t bytes) {
    alignas(16) char buffer[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(buffer), x);
    __builtin_memcpy(p, buffer, bytes);
  }
  static F Widen(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  // Rounds to nearest even; NaN stays NaN.
  static __m128i Narrow(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
  }
  static F Fp8(__m128i codes) {
    const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);
    return _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
  }
};

}  // namespace switchyard::kernels::cpu::avx2
