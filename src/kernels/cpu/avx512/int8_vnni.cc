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
  // Each 128-bit lane of the result has one partial sum of each of the four vectors.
  [[gnu::always_inline]] static Sum SumsOfFour(const Sum* s) {
    const auto add = [](Sum a, Sum b) __attribute__((always_inline)) {
      return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    };
    const Sum ab = add(s[0], s[1]), cd = add(s[2], s[3]);
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  static void Reduce4(const Sum (&acc)[4], int32_t* sums) {
    const Sum abcd = SumsOfFour(acc);
    const __m256i two =
        _mm256_add_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64(abcd, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                     _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)));
  }

 private:
  static Codes Unsigned(__m512i w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
};

// Products of short weight rows, sixteen at a time, whose lanes are reduced together.
constexpr int kShortOutputs = simd::kInt8Rows, kHalfOutputs = kShortOutputs / 2;

// Sets sums to the products of x with eight weight rows, which are `stride` codes apart. Rows from
// `count` on repeat the one before.
[[gnu::always_inline]] inline void EightProducts(const int8_t* first, int64_t stride, int64_t count,
                                                 int64_t k, const int8_t* x, __m512i* sums) {
  const int8_t* w[kHalfOutputs] = {first};
#pragma GCC unroll 8
  for (int c = 1; c < kHalfOutputs; ++c) w[c] = c < count ? w[c - 1] + stride : w[c - 1];
#pragma GCC unroll 8
  for (int c = 0; c < kHalfOutputs; ++c) sums[c] = Int8Dot::Zero();
  const auto step = [&](int64_t j, const auto& load) __attribute__((always_inline)) {
    __m512i codes = Int8Dot::Load(x + j);
    asm("" : "+v"(codes));  // prevents a reload for each product
#pragma GCC unroll 8
    for (int c = 0; c < kHalfOutputs; ++c) sums[c] = Int8Dot::Add(sums[c], load(w[c] + j), codes);
  };
  int64_t j = 0;
  for (; j + Int8Dot::kBytes <= k; j += Int8Dot::kBytes)
    step(
        j, [](const int8_t* p) __attribute__((always_inline)) { return Int8Dot::Bytes(p); });
  if (j < k)  // tail: x rows are zero-padded, weight rows are not
    step(
        j, [left = k - j](const int8_t* p)
               __attribute__((always_inline)) { return Int8Dot::BytesN(p, left); });
}

// Lane i: the sum of the lanes of sums[i].
[[gnu::always_inline]] inline __m512i ReduceSixteen(const __m512i (&sums)[kShortOutputs]) {
  __m512i fours[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) fours[i] = Int8Dot::SumsOfFour(sums + 4 * i);
  const auto halve = [](__m512i a, __m512i b) __attribute__((always_inline)) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  };
  const __m512i low = halve(fours[0], fours[1]), high = halve(fours[2], fours[3]);
  return _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88),
                          _mm512_shuffle_i32x4(low, high, 0xdd));
}

// Computes the same as LinearInt8.
void LinearInt8Short(const LinearTask& t) {
  const int64_t stride = t.w.row_step * t.w.stored_k;
  for (int64_t n = t.begin; n < t.end; n += kShortOutputs) {
    const int64_t count = t.end - n < kShortOutputs ? t.end - n : kShortOutputs;
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    const int8_t* first = simd::Int8WeightRow<Int8Dot>(t.w, n);
    const __m512 scales =
        count == kShortOutputs && t.w.row_step == 1
            ? _mm512_loadu_ps(static_cast<const char*>(t.w.scales) + (t.w.row0 + n) * sizeof(float))
            : _mm512_loadu_ps(simd::OutputsAt<Int8Dot>(t, n).scales);
    // The second half repeats the last row if it has none.
    const int64_t second = kHalfOutputs < count ? kHalfOutputs : count - 1;
    for (int64_t i = 0; i < t.m; ++i) {
      const int64_t row = Vnni::Row(t, i);
      const auto* x = reinterpret_cast<const int8_t*>(Vnni::Data(t, row));
      __m512i sums[kShortOutputs];
      EightProducts(first, stride, count, t.w.k, x, sums);
      EightProducts(first + second * stride, stride, count - second, t.w.k, x, sums + kHalfOutputs);
      const Int8Row& rounded = t.codes.rows[row];
      const uint32_t offset = Vnni::kOffset * static_cast<uint32_t>(rounded.sum);
      const __m512i exact =
          _mm512_sub_epi32(ReduceSixteen(sums), _mm512_set1_epi32(static_cast<int32_t>(offset)));
      __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), _mm512_set1_ps(rounded.scale));
      value = _mm512_mul_ps(value, scales);
      float* y = t.y + i * t.ldy + n;
      if (t.bias != nullptr) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, t.bias + n));
      if (t.accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), value);
      _mm512_mask_storeu_ps(y, mask, value);
    }
  }
}

}  // namespace

void LinearInt8(const LinearTask& t) {
  if (t.m >= kInt8PanelMinRows) return LinearInt8Panels(t);
  if (t.m <= kShortInt8Rows && t.w.k <= kShortInt8Row) return LinearInt8Short(t);
  simd::LinearInt8<Int8Dot>(t);
}

}  // namespace switchyard::kernels::cpu::avx512
