// AVX-512 VNNI int8 products: four unsigned × signed products per lane. The weights are the
// unsigned operand, w + 128.
#include <immintrin.h>

#include "kernels/cpu/avx512/int8_panels.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/int8.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

struct Int8Dot {
  using Codes = __m512i;
  using Sum = __m512i;
  using X = int8_t;
  static constexpr int64_t kBytes = 64;
  static constexpr int kParts = 1;
  static constexpr int64_t kMaxRows = int64_t{1} << 32;  // no limit
  static constexpr int kTileRows = 8;
  // Weight rows of a tile: as many as the registers can accumulate next to the rows of x.
  static constexpr int CachedCols(int rows) { return rows <= 6 ? 4 : 2; }
  static constexpr int Cols(int rows) {
    return rows <= kInt8SingleStreamRows ? 1 : CachedCols(rows);
  }
  static constexpr int64_t PrefetchDistance(int rows) {
    return rows <= kInt8NoPrefetchRows ? 0 : kPrefetchBytes;
  }
  static constexpr uint32_t kOffset = 128;

  static simd::Int8Input<Int8Dot> Rows(const LinearTask& t, int64_t, int64_t) {
    return {t.codes.base, t.codes.ld, t.codes.ids, 0};
  }

  static Sum Zero() { return _mm512_setzero_si512(); }
  static Codes Load(const int8_t* p) { return _mm512_loadu_si512(p); }
  static Codes Bytes(const int8_t* p) { return Unsigned(_mm512_loadu_si512(p)); }
  static Codes BytesN(const int8_t* p, int64_t n) {
    return Unsigned(_mm512_maskz_loadu_epi8((__mmask64{1} << n) - 1, p));
  }
  static Codes Part(Codes bytes, int) { return bytes; }
  // In place: with the intrinsic, GCC 12 copies the sums and spills them.
  static Sum Add(Sum sum, Codes w, Codes x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
  }
  static void Reduce4(const Sum (&acc)[4], int32_t* sums) {
    const auto add = [](Sum a, Sum b) __attribute__((always_inline)) {
      return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    };
    const Sum ab = add(acc[0], acc[1]), cd = add(acc[2], acc[3]);
    // Each 128-bit lane has one partial sum of each of the four vectors.
    const Sum abcd = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i two =
        _mm256_add_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64(abcd, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                     _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)));
  }

 private:
  static Codes Unsigned(__m512i w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
};

}  // namespace

void LinearInt8(const LinearTask& t) {
  if (t.m >= kInt8PanelMinRows) return LinearInt8Panels(t);
  simd::LinearInt8<Int8Dot>(t);
}

}  // namespace switchyard::kernels::cpu::avx512
