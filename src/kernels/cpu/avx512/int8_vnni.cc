// Int8 products of AVX-512 VNNI: four of unsigned by signed codes at once. The weights are the
// unsigned ones, w + 128.
#include <immintrin.h>

#include "kernels/cpu/avx512/int8_panels.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"
#include "kernels/cpu/simd/int8.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

struct Int8Dot {
  using Codes = __m512i;
  using Sum = __m512i;
  static constexpr int64_t kBytes = 64;
  static constexpr int kTileRows = 6;
  static constexpr uint32_t kOffset = 128;

  static Sum Zero() { return _mm512_setzero_si512(); }
  static Codes Load(const int8_t* p) { return _mm512_loadu_si512(p); }
  static Codes LoadN(const int8_t* p, int64_t n) {
    return _mm512_maskz_loadu_epi8((__mmask64{1} << n) - 1, p);
  }
  static Codes Weights(Codes w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
  // In place: from the intrinsic GCC 12 makes copies of the sums and spills them.
  static Sum Add(Sum sum, Codes w, Codes x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
  }
  static void Reduce4(const Sum (&acc)[4], int32_t* sums) {
    for (int c = 0; c < 4; ++c) sums[c] = _mm512_reduce_add_epi32(acc[c]);
  }
};

}  // namespace

void LinearInt8(const LinearTask& t) {
  if (t.m >= kInt8PanelFewestRows) return LinearInt8Panels(t);
  simd::LinearInt8<Int8Dot>(t);
}

}  // namespace switchyard::kernels::cpu::avx512
