// AVX2 products of int8 rows with 4-bit weights and with panels. Products of unsigned bytes of at
// most 63 with codes are summed in 16 bits, four at a time, which cannot overflow: 4 · 63 · 127 <
// 2^15.
#include <immintrin.h>

#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/stored_panels.h"

namespace switchyard::kernels::cpu::avx2 {
namespace {

struct FourBitLanes {
  using Vec = avx2::Vec;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 4;
  static constexpr int kDirectPanelRows = 1, kWidePanels = 0;
  static constexpr int Chains(int) {
    return 1;
  }  // one chain is enough: each product has only one addition that depends on the previous one
  static constexpr int64_t kVectorBytes = 32;
  static constexpr bool kByteStarts = false;
  static int64_t Step(int64_t step) { return step; }

  static I Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void Store(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static I Set1(int32_t x) { return _mm256_set1_epi32(x); }
  static I Add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I Subtract(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I Multiply(I a, I b) { return _mm256_mullo_epi32(a, b); }
  static I Max(I a, I b) { return _mm256_max_epi32(a, b); }
  static I And(I a, I b) { return _mm256_and_si256(a, b); }
  static I Or(I a, I b) { return _mm256_or_si256(a, b); }
  static I Xor(I a, I b) { return _mm256_xor_si256(a, b); }
  template <int n>
  static I ShiftLeft(I x) {
    return _mm256_slli_epi16(x, n);
  }
  template <int n>
  static I ShiftRight(I x) {
    return _mm256_srli_epi16(x, n);
  }
  template <int n>
  static I ShiftLeft32(I x) {
    return _mm256_slli_epi32(x, n);
  }
  template <int n>
  static I ShiftRight32(I x) {
    return _mm256_srli_epi32(x, n);
  }
  template <int n>
  static I ShiftRightSigned(I x) {
    return _mm256_srai_epi32(x, n);
  }
  static I ReplaceEqual(I x, I code, I bits, I other) {
    return _mm256_blendv_epi8(bits, other, _mm256_cmpeq_epi32(x, code));
  }
  static I AddBytes(I a, I b) { return _mm256_add_epi8(a, b); }
  template <class... Bytes>
  static I Table(Bytes... bytes) {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(static_cast<char>(bytes)...));
  }
  static I Lookup(I table, I nibbles) { return _mm256_shuffle_epi8(table, nibbles); }
  static I Widen(const void* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  static I WidenSigned(const void* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  static __m256 ToFloat(I x) { return _mm256_cvtepi32_ps(x); }
  static __m256 AsFloat(I x) { return _mm256_castsi256_ps(x); }
  static void StoreBytes(I x, char* out) {
    alignas(32) int32_t lanes[kLanes];
    Store(lanes, x);
    for (int i = 0; i < kLanes; ++i) out[i] = static_cast<char>(lanes[i]);
  }

  static bool BytesWithin(const void* p, uint8_t least, uint8_t most) {
    const I first = Load(p), second = Load(static_cast<const char*>(p) + kVectorBytes);
    const I lower = _mm256_min_epu8(first, second), upper = _mm256_max_epu8(first, second);
    const I low = _mm256_set1_epi8(static_cast<char>(least));
    const I high = _mm256_set1_epi8(static_cast<char>(most));
    const I within = _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_max_epu8(lower, low), lower),
                                      _mm256_cmpeq_epi8(_mm256_min_epu8(upper, high), upper));
    return _mm256_movemask_epi8(within) == -1;
  }

  [[gnu::always_inline]] static void AddProducts(I& a, I&, I low, I high, const char* x) {
    const I pairs = _mm256_add_epi16(_mm256_maddubs_epi16(low, Four(x)),
                                     _mm256_maddubs_epi16(high, Four(x + simd::kFourBitChunk / 2)));
    a = AddPairs(a, pairs);
  }
  // Multiplies |code| with x, negated where the code is negative. Sums of two products fit 16 bits:
  // 2 · 128 · 127 < 2^15.
  [[gnu::always_inline]] static void AddByteProducts(I& a, I&, I low, I high, const char* x) {
    const auto pairs = [](I bytes, I four) __attribute__((always_inline)) {
      const I codes = Xor(bytes, _mm256_set1_epi8(static_cast<char>(0x80)));
      return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(four, codes));
    };
    a = AddPairs(a, pairs(low, Four(x)));
    a = AddPairs(a, pairs(high, Four(x + simd::kFourBitChunk / 2)));
  }

  static void TransposeCodes(const simd::FourBitRows<kLanes>& rows, int64_t at, int64_t count,
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

 private:
  // Broadcasts four codes of x to every 32-bit lane.
  [[gnu::always_inline]] static I Four(const char* x) {
    int32_t codes;
    __builtin_memcpy(&codes, x, sizeof(codes));
    return Set1(codes);
  }
  [[gnu::always_inline]] static I AddPairs(I sum, I pairs) {
    return Add(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

struct FourBitDot : simd::FourBitOps<FourBitLanes> {
  static constexpr int DirectRows(int) { return 0; }
};

}  // namespace

void LinearFourBit(const LinearTask& t) { simd::LinearFourBit<FourBitDot>(t); }

}  // namespace switchyard::kernels::cpu::avx2
