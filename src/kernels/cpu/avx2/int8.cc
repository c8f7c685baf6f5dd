// AVX2 int8 products in 16-bit arithmetic. x is widened once for all weight rows of a task. Weights
// are widened as they are loaded, by shifts that separate even and odd columns. Shifts run on ports
// that do not multiply, and need fewer ports than vpmovsxbw (176 against 168 GOP/s from L1). The
// 8-bit alternative (vpsignb, vpmaddubsw, vpmaddwd) needs three instructions on the two multiply
// ports per 32 products; 16-bit arithmetic needs two.
#include "kernels/cpu/simd/int8.h"

#include <immintrin.h>

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx2 {
namespace {

struct Int8Dot {
  using Vector = __m256i;  // 32 codes
  using Codes = __m256i;   // 16 codes of 16 bits each, from even columns or from odd ones
  using Sum = __m256i;
  using X = int16_t;
  static constexpr int64_t kBytes = 32;
  static constexpr int kParts = 2;
  static constexpr int64_t kMaxRows = 2 * kPanelRows;  // as many as LinearScratch can hold
  static constexpr int kTileRows = 6;
  static constexpr int CachedCols(int) { return 2; }
  static constexpr int Cols(int) { return 1; }  // hardware prefetches a single stream fastest
  static constexpr int64_t PrefetchDistance(int rows) { return rows == 1 ? 0 : kPrefetchBytes; }
  static constexpr uint32_t kOffset = 0;

  // Widens rows of x once for all weights of a task.
  static simd::Int8Input<Int8Dot> Rows(const LinearTask& t, int64_t first, int64_t count) {
    const int64_t ld = ScratchStride(t.w.k);
    auto* wide = reinterpret_cast<int16_t*>(t.scratch);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = t.codes.ids != nullptr ? t.codes.ids[first + i] : first + i;
      const int8_t* from = t.codes.base + row * t.codes.ld;
      for (int64_t j = 0; j < t.w.k; j += kBytes) {
        const Vector codes = Bytes(from + j);
        for (int part = 0; part < kParts; ++part) {
          auto* to = reinterpret_cast<__m256i*>(wide + i * ld + j + part * (kBytes / kParts));
          _mm256_store_si256(to, Part(codes, part));
        }
      }
    }
    return {wide, ld, nullptr, first};
  }

  static Sum Zero() { return _mm256_setzero_si256(); }
  static Codes Load(const int16_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Vector Bytes(const int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Vector BytesN(const int8_t* p, int64_t n) {
    alignas(32) int8_t buffer[kBytes] = {};
    __builtin_memcpy(buffer, p, n);
    return Bytes(buffer);
  }
  static Codes Part(Vector bytes, int part) {
    if (part == 0) bytes = _mm256_slli_epi16(bytes, 8);
    return _mm256_srai_epi16(bytes, 8);
  }
  static Sum Add(Sum sum, Codes w, Codes x) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
    asm("" : "+x"(sum));  // otherwise GCC 12 adds up the products of a line first and spills them
    return sum;
  }
  static void Reduce4(const Sum (&acc)[4], int32_t* sums) {
    const auto add = [](Sum a, Sum b) __attribute__((always_inline)) {
      return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    };
    const Sum ab = add(acc[0], acc[1]), cd = add(acc[2], acc[3]);
    // Each 128-bit lane has one partial sum of each of the four vectors.
    const Sum all = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                     _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
  }
};

}  // namespace

void LinearInt8(const LinearTask& t) { simd::LinearInt8<Int8Dot>(t); }

}  // namespace switchyard::kernels::cpu::avx2
