// AVX-512 VNNI int8 products: four unsigned × signed products per lane. The weights are the
// unsigned operand, w + 128.
#include <immintrin.h>

#include "kernels/cpu/avx512/panel_tiles.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/int8.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

// Int8 products for many rows: packs kMaxPanelCols weight rows at a time into panels (panels.h),
// which stay in L2 for all rows of x. One vector of weights multiplies four codes of a row of x,
// broadcast. Sums are exact in int32, so the order does not matter: results equal those of
// simd/int8.h. Packing is faster from a minimum number of rows on (cpu/heuristics.h).
struct Vnni {
  static constexpr int kWeightBytes = 1;
  static constexpr bool kScaled = true;
  static constexpr uint32_t kOffset = 128;  // unsigned × signed product: weights are w + kOffset
  using Sum = __m512i;

  static __m512i Encode(__m512i weights) {
    return _mm512_xor_si512(weights, _mm512_set1_epi8(-128));
  }
  static Sum Zero() { return _mm512_setzero_si512(); }
  // _mm512_dpbusd_epi32 in place: with the intrinsic, GCC 12 copies the sums and spills them.
  static void Add(Sum& sum, __m512i weights, __m512i codes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(codes));
  }
  static int64_t Row(const LinearTask& t, int64_t i) {
    return t.codes.ids != nullptr ? t.codes.ids[i] : i;
  }
  static const char* Data(const LinearTask& t, int64_t row) {
    return reinterpret_cast<const char*>(t.codes.base) + row * t.codes.ld;
  }
  static __m512 Outputs(const LinearTask& t, const Panel& p, int64_t row, int v, Sum sums) {
    const Int8Row& x = t.codes.rows[row];
    // Every sum contains kOffset · Σ x, from the offset of the weights.
    const uint32_t offset = kOffset * static_cast<uint32_t>(x.sum);
    sums = _mm512_sub_epi32(sums, _mm512_set1_epi32(static_cast<int32_t>(offset)));
    return ScaledSums<Vnni>(sums, x.scale, p, v);
  }
};

// Computes the same as LinearInt8. t.scratch has LinearScratch(k) floats.
void LinearInt8Panels(const LinearTask& t) { MultiplyPanels<Vnni>(t); }

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
