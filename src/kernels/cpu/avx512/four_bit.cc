// VNNI products of 4-bit weights and int8 rows.
#include "kernels/cpu/simd/four_bit.h"

#include <immintrin.h>

#include "kernels/cpu/avx512/panels.h"
#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

struct FourBitDot {
  using Vec = avx512::Vec;
  using I = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 8;
  static constexpr int Chains(int m) { return m == 1 ? 4 : m <= 4 ? 2 : 1; }
  static constexpr int64_t kVectorBytes = kPanelLine;

  static I Load(const void* p) { return _mm512_loadu_si512(p); }
  static I Set1(int32_t x) { return _mm512_set1_epi32(x); }
  static I Add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I AddBytes(I a, I b) { return _mm512_add_epi8(a, b); }
  static I LowNibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static I HighNibbles(I x) { return LowNibbles(_mm512_srli_epi16(x, 4)); }
  template <class... Bytes>
  static I Table(Bytes... bytes) {
    return _mm512_broadcast_i32x4(_mm_setr_epi8(static_cast<char>(bytes)...));
  }
  static I Lookup(I table, I nibbles) { return _mm512_shuffle_epi8(table, nibbles); }
  static __m512 ToFloat(I x) { return _mm512_cvtepi32_ps(x); }

  [[gnu::always_inline]] static void AddProducts(I& a, I& b, I low, I high, const char* x) {
    AddFour(a, low, x);
    AddFour(b, high, x + kPanelGroup);
  }

  // The four halves of a transposed line are loaded without shuffles (panels.h).
  static void TransposeCodes(const simd::FourBitRows<FourBitDot>& rows, int64_t at, int64_t count,
                             char* out) {
    PanelLines lines;
    if (count == kPanelLine) {
      LoadLines<FourBitDot>(rows.row, at, lines);
    } else {
      const uint64_t mask = (uint64_t{1} << count) - 1;
      const auto load = [ at, mask ](const char* row, int64_t half) __attribute__((always_inline)) {
        return _mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask >> half), row + at + half);
      };
      LoadPairs<FourBitDot>(rows.row, load, lines);
    }
#pragma GCC unroll 2
    for (const auto& half : lines.halves) {
      __m512i groups[kPanelGroups];
      Transpose<FourBitDot>(half, groups);
#pragma GCC unroll 8
      for (int c = 0; c < kPanelGroups; ++c) _mm512_store_si512(out + c * kPanelLine, groups[c]);
      out += kPanelGroups * kPanelLine;
    }
  }

  static __m512 HalvedE8M0(const char* p, int64_t n) {
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(Vec::First(n), p));
    // Code 0 is subnormal, code 255 is NaN.
    __m512i bits = _mm512_max_epi32(_mm512_slli_epi32(codes, 23), Set1(0x00400000));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(codes, Set1(255));
    bits = _mm512_mask_mov_epi32(bits, nan, Set1(0x7fc00000));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5f));
  }
  static __m512 ZeroOperands(const char* p, int64_t n) {
    const __m512i zeros = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(Vec::First(n), p));
    const __m512i value = _mm512_sub_epi32(Set1(16), zeros);
    return _mm512_castsi512_ps(_mm512_mullo_epi32(value, Set1(0x01010101)));
  }

 private:
  using Four [[gnu::may_alias]] = int32_t;  // codes of a row of x, which were written as bytes
  // In place: with the intrinsic, GCC 12 copies the sums and spills them.
  [[gnu::always_inline]] static void AddFour(I& sum, I weights, const char* x) {
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(weights), "m"(*reinterpret_cast<const Four*>(x)));
  }
};

}  // namespace

void LinearFourBit(const LinearTask& t) { simd::LinearFourBit<FourBitDot>(t); }

}  // namespace switchyard::kernels::cpu::avx512
