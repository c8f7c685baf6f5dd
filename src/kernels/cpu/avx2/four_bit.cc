// AVX2 products of 4-bit weights and int8 rows. The products of unsigned bytes of at most 31 with
// codes are summed in 16 bits, four at a time, which cannot overflow: 4 · 31 · 127 < 2^15.
#include "kernels/cpu/simd/four_bit.h"

#include <immintrin.h>

#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx2 {
namespace {

struct FourBitDot {
  using Vec = avx2::Vec;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 4;
  static constexpr int Chains(int) { return 1; }  // only one addition per product is in the chain
  static constexpr int64_t kVectorBytes = 32;
  static constexpr int DirectRows(int) { return 0; }

  static I Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static I Set1(int32_t x) { return _mm256_set1_epi32(x); }
  static I Add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I AddBytes(I a, I b) { return _mm256_add_epi8(a, b); }
  static I LowNibbles(I x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static I HighNibbles(I x) { return LowNibbles(_mm256_srli_epi16(x, 4)); }
  template <class... Bytes>
  static I Table(Bytes... bytes) {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(static_cast<char>(bytes)...));
  }
  static I Lookup(I table, I nibbles) { return _mm256_shuffle_epi8(table, nibbles); }
  static __m256 ToFloat(I x) { return _mm256_cvtepi32_ps(x); }

  [[gnu::always_inline]] static void AddProducts(I& a, I&, I low, I high, const char* x) {
    int32_t even, odd;
    __builtin_memcpy(&even, x, sizeof(even));
    __builtin_memcpy(&odd, x + simd::kFourBitChunk / 2, sizeof(odd));
    const I pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low, Set1(even)),
                                     _mm256_maddubs_epi16(high, Set1(odd)));
    a = Add(a, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }

  static void TransposeCodes(const simd::FourBitRows<FourBitDot>& rows, int64_t at, int64_t count,
                             char* out) {
    __m256 x[kLanes];
    if (count == kVectorBytes) {
      for (int r = 0; r < kLanes; ++r) x[r] = _mm256_castsi256_ps(Load(rows.row[r] + at));
    } else {
      for (int r = 0; r < kLanes; ++r) {
        char part[kVectorBytes] = {};
        __builtin_memcpy(part, rows.row[r] + at, count);
        x[r] = _mm256_castsi256_ps(Load(part));
      }
    }
    Vec::Transpose(x);
    for (int c = 0; c < kLanes; ++c) Vec::Store(reinterpret_cast<float*>(out) + c * kLanes, x[c]);
  }

  template <int b>
  static I Byte(I x) {
    return _mm256_and_si256(_mm256_srli_epi32(x, 8 * b), Set1(255));
  }
  static void Store(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static void StoreBytes(I x, char* out) {
    alignas(32) int32_t lanes[kLanes];
    Store(lanes, x);
    for (int i = 0; i < kLanes; ++i) out[i] = static_cast<char>(lanes[i]);
  }
  static __m256 HalvedE8M0(I codes) {
    // Code 0 is subnormal, code 255 is NaN.
    const I bits = _mm256_max_epi32(_mm256_slli_epi32(codes, 23), Set1(0x00400000));
    const I nan = _mm256_cmpeq_epi32(codes, Set1(255));
    const I all = _mm256_blendv_epi8(bits, Set1(0x7fc00000), nan);
    return _mm256_mul_ps(_mm256_castsi256_ps(all), _mm256_set1_ps(0.5f));
  }
  static I ZeroOperands(I zeros) {
    return _mm256_mullo_epi32(_mm256_sub_epi32(Set1(16), zeros), Set1(0x01010101));
  }
};

}  // namespace

void LinearFourBit(const LinearTask& t) { simd::LinearFourBit<FourBitDot>(t); }

}  // namespace switchyard::kernels::cpu::avx2
