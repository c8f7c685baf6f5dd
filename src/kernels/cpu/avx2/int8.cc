// Int8 products of AVX2: |w| · (x with the sign of w), unsigned by signed. As |w| is at most 128
// and |x| at most 127, the pairs that vpmaddubsw adds up never saturate.
#include "kernels/cpu/simd/int8.h"

#include <immintrin.h>

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::avx2 {
namespace {

struct Int8Dot {
  using Codes = __m256i;
  using Sum = __m256i;
  struct Signed {
    __m256i w, magnitude;
  };
  static constexpr int64_t kBytes = 32;
  static constexpr int kTileRows = 2;
  static constexpr int Cols(int) { return 4; }
  static constexpr int64_t Ahead(int) { return kAheadBytes; }
  static constexpr int CachedCols(int) { return 4; }
  static constexpr uint32_t kOffset = 0;

  static Sum Zero() { return _mm256_setzero_si256(); }
  static Codes Load(const int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Codes LoadN(const int8_t* p, int64_t n) {
    alignas(32) int8_t buffer[kBytes] = {};
    __builtin_memcpy(buffer, p, n);
    return Load(buffer);
  }
  static Signed Weights(Codes w) { return {w, _mm256_abs_epi8(w)}; }
  static Sum Add(Sum sum, const Signed& w, Codes x) {
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x, w.w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static void Reduce4(const Sum (&acc)[4], int32_t* sums) {
    const __m256i ab = _mm256_hadd_epi32(acc[0], acc[1]), cd = _mm256_hadd_epi32(acc[2], acc[3]);
    const __m256i all = _mm256_hadd_epi32(ab, cd);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                     _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
  }
};

}  // namespace

void LinearInt8(const LinearTask& t) { simd::LinearInt8<Int8Dot>(t); }

}  // namespace switchyard::kernels::cpu::avx2
