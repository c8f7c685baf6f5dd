// Products of pairs in bfloat16 by vdpbf16ps, for any number of rows of x: a kernel that adds
// along K in vectors would add in another order. A lane adds the product of a pair's second
// columns, rounds, adds that of the first ones, rounds, and takes numbers too small to be normal
// for zero (Intel's manual).
#include <immintrin.h>

#include "kernels/cpu/avx512/few_rows.h"
#include "kernels/cpu/avx512/panel_tiles.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

struct Pairs {
  static constexpr int kWeightBytes = 2;
  static constexpr bool kScaled = false;
  using Sum = __m512;

  static __m512i Encode(__m512i weights) { return weights; }
  static Sum Zero() { return _mm512_setzero_ps(); }
  // In place, as int8_panels.cc has it.
  static void Add(Sum& sum, __m512i weights, __m512i x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));
  }
  static int64_t Row(const LinearTask& t, int64_t i) {
    return t.halves.ids != nullptr ? t.halves.ids[i] : i;
  }
  static const char* Data(const LinearTask& t, int64_t row) {
    return reinterpret_cast<const char*>(t.halves.base + row * t.halves.ld);
  }
  static __m512 Outputs(const LinearTask&, const Panel&, int64_t, int, Sum sums) { return sums; }
};

}  // namespace

void LinearBF16(const LinearTask& t) {
  if (t.m <= kFewRows) return MultiplyFewRows<Pairs>(t);
  MultiplyPanels<Pairs>(t);
}

}  // namespace switchyard::kernels::cpu::avx512
