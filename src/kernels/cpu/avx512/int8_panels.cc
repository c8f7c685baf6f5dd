#include "kernels/cpu/avx512/int8_panels.h"

#include <immintrin.h>

#include "kernels/cpu/avx512/panel_tiles.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

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

}  // namespace

void LinearInt8Panels(const LinearTask& t) { MultiplyPanels<Vnni>(t); }

}  // namespace switchyard::kernels::cpu::avx512
