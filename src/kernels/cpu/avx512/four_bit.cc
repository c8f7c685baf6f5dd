// VNNI products of int8 rows with 4-bit weights and with panels.
#include <immintrin.h>

#include "kernels/cpu/avx512/panels.h"
#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/stored_panels.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

struct FourBitLanes {
  using Vec = avx512::Vec;
  using I = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 8;
  static constexpr int kDirectPanelRows = 8;
  static constexpr int kWidePanels = 2, kWideRows = 6, kWideLeastRows = 4;
  static constexpr int Chains(int m) { return m == 1 ? 4 : m <= 4 ? 2 : 1; }
  static constexpr int64_t kVectorBytes = kPanelLine;
  static constexpr bool kByteStarts = true;
  static constexpr int64_t Step(int64_t) { return kPanelLine; }  // the same for all kinds of panels

  static I Load(const void* p) { return _mm512_loadu_si512(p); }
  static void Store(void* p, I x) { _mm512_storeu_si512(p, x); }
  static I Set1(int32_t x) { return _mm512_set1_epi32(x); }
  static I Add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I Subtract(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I Multiply(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static I Max(I a, I b) { return _mm512_max_epi32(a, b); }
  static I And(I a, I b) { return _mm512_and_si512(a, b); }
  static I Or(I a, I b) { return _mm512_or_si512(a, b); }
  static I Xor(I a, I b) { return _mm512_xor_si512(a, b); }
  template <int n>
  static I ShiftLeft(I x) {
    return _mm512_slli_epi16(x, n);
  }
  template <int n>
  static I ShiftRight(I x) {
    return _mm512_srli_epi16(x, n);
  }
  template <int n>
  static I ShiftLeft32(I x) {
    return _mm512_slli_epi32(x, n);
  }
  template <int n>
  static I ShiftRight32(I x) {
    return _mm512_srli_epi32(x, n);
  }
  template <int n>
  static I ShiftRightSigned(I x) {
    return _mm512_srai_epi32(x, n);
  }
  static I ReplaceEqual(I x, I code, I bits, I other) {
    return _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(x, code), other);
  }
  static I AddBytes(I a, I b) { return _mm512_add_epi8(a, b); }
  template <class... Bytes>
  static I Table(Bytes... bytes) {
    return _mm512_broadcast_i32x4(_mm_setr_epi8(static_cast<char>(bytes)...));
  }
  static I Lookup(I table, I nibbles) { return _mm512_shuffle_epi8(table, nibbles); }
  static I Widen(const void* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static I WidenSigned(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static __m512 ToFloat(I x) { return _mm512_cvtepi32_ps(x); }
  static __m512 AsFloat(I x) { return _mm512_castsi512_ps(x); }
  static void StoreBytes(I x, char* out) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(x));
  }

  static bool BytesWithin(const void* p, uint8_t least, uint8_t most) {
    const I above = _mm512_sub_epi8(Load(p), _mm512_set1_epi8(static_cast<char>(least)));
    return _mm512_cmpgt_epu8_mask(above, _mm512_set1_epi8(static_cast<char>(most - least))) == 0;
  }

  [[gnu::always_inline]] static void AddProducts(I& a, I& b, I low, I high, const char* x) {
    AddAt(a, low, x);
    AddAt(b, high, x + simd::kFourBitChunk / 2);
  }
  [[gnu::always_inline]] static void AddByteProducts(I& a, I& b, I low, I high, const char* x) {
    AddProducts(a, b, low, high, x);
  }

  [[gnu::always_inline]] static I Four(const char* x) {
    return _mm512_set1_epi32(*reinterpret_cast<const FourCodes*>(x));
  }
  [[gnu::always_inline]] static void AddFour(I& sum, I weights, I four) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(four));
  }

  // Transposes one cache line (64 bytes) of sixteen rows. Rows are loaded in halves of 32 bytes,
  // which saves shuffles (PanelLines in panels.h).
  static void TransposeCodes(const simd::FourBitRows<kLanes>& rows, int64_t at, int64_t count,
                             char* out) {
    PanelLines lines;
    if (count == kPanelLine) {
      LoadLines<FourBitLanes>(rows.row, at, lines);
    } else {
      const uint64_t mask = (uint64_t{1} << count) - 1;
      const auto load = [ at, mask ](const char* row, int64_t half) __attribute__((always_inline)) {
        return _mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask >> half), row + at + half);
      };
      LoadPairs<FourBitLanes>(rows.row, load, lines);
    }
#pragma GCC unroll 2
    for (const auto& half : lines.halves) {
      __m512i groups[kPanelGroups];
      Transpose<FourBitLanes>(half, groups);
#pragma GCC unroll 8
      for (int c = 0; c < kPanelGroups; ++c) _mm512_store_si512(out + c * kPanelLine, groups[c]);
      out += kPanelGroups * kPanelLine;
    }
  }

 private:
  using FourCodes [[gnu::may_alias]] = int32_t;  // four codes of x, which were written as bytes
  // In place: with the intrinsic, GCC 12 copies the sums and spills them.
  [[gnu::always_inline]] static void AddAt(I& sum, I weights, const char* x) {
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(weights), "m"(*reinterpret_cast<const FourCodes*>(x)));
  }
};

struct FourBitDot : simd::FourBitOps<FourBitLanes> {
  // Rows of x up to which DirectTile is used. Blocks of 16 columns (8 per chunk) need twice as many
  // accumulators, so fewer rows fit the registers.
  static constexpr int DirectRows(int blocks) { return blocks == 8 ? 2 : 4; }

  // Four weight rows at a time, transposed within 128-bit lanes only: lane q of vector c has four
  // bytes of each row, from byte 16 · q + 4 · c of the chunk on. The codes of x are multiplied in
  // the same order. The lanes of the sums are transposed once per chunk.
  template <class Codes, int kBlocks, int M>
  [[gnu::noinline]] static void DirectTile(const simd::FourBitOutputs<FourBitDot>& o,
                                           const simd::FourBitRows<kLanes>& rows,
                                           const simd::FourBitAhead<FourBitDot>& ahead);

 private:
  [[gnu::always_inline]] static void AddLanes(I& sum, I weights, I x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "vm"(x));
  }
};

constexpr int kQuads = 4;  // quads of rows in a panel; 128-bit lanes of a vector; parts of a lane

// 64 bytes of each of four rows, from byte `at` on. `mask`: the bytes that exist, unless `whole`.
// Lane q of part[c] has bytes [16 q + 4 c, 16 q + 4 c + 4) of all four rows.
struct Quad {
  __m512i part[kQuads];

  [[gnu::always_inline]] Quad(const char* const* rows, int64_t at, __mmask64 mask, bool whole) {
    __m512i x[kQuads];
#pragma GCC unroll 4
    for (int r = 0; r < kQuads; ++r) {
      x[r] = whole ? _mm512_loadu_si512(rows[r] + at) : _mm512_maskz_loadu_epi8(mask, rows[r] + at);
    }
    const __m512i ab = _mm512_unpacklo_epi32(x[0], x[1]), cd = _mm512_unpacklo_epi32(x[2], x[3]);
    const __m512i ab_high = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i cd_high = _mm512_unpackhi_epi32(x[2], x[3]);
    part[0] = _mm512_unpacklo_epi64(ab, cd);
    part[1] = _mm512_unpackhi_epi64(ab, cd);
    part[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    part[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
  }
};

// Sets lanes[q] to the 128-bit lanes q of the four vectors x.
[[gnu::always_inline]] inline void TransposeLanes(const __m512i (&x)[kQuads],
                                                  __m512i (&lanes)[kQuads]) {
  const __m512i low = _mm512_shuffle_i32x4(x[0], x[1], 0x44);
  const __m512i low2 = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
  const __m512i high = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
  const __m512i high2 = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
  lanes[0] = _mm512_shuffle_i32x4(low, low2, 0x88);
  lanes[1] = _mm512_shuffle_i32x4(low, low2, 0xdd);
  lanes[2] = _mm512_shuffle_i32x4(high, high2, 0x88);
  lanes[3] = _mm512_shuffle_i32x4(high, high2, 0xdd);
}

template <int kPart>
[[gnu::always_inline]] inline __m512i Spread(__m512i x) {
  return _mm512_shuffle_epi32(x, static_cast<_MM_PERM_ENUM>(kPart * 0x55));
}

template <class Codes, int kBlocks, int M>
void FourBitDot::DirectTile(const simd::FourBitOutputs<FourBitDot>& o,
                            const simd::FourBitRows<kLanes>& rows,
                            const simd::FourBitAhead<FourBitDot>& ahead) {
  // A 128-bit lane has 32 columns in four parts. So a block of 16 columns consists of two parts and
  // needs its own sums.
  constexpr int kHalves = kBlocks == 8 ? 2 : 1;
  constexpr int kLanesOfBlock = kQuads * kHalves / kBlocks;
  const Int8BlockSource& source = o.t.blocks;
  const char* x[M];
#pragma GCC unroll 4
  for (int r = 0; r < M; ++r)
    x[r] = source.base + (source.ids != nullptr ? source.ids[r] : r) * source.ld;
  const int64_t scales_at = o.chunks * simd::kFourBitChunk, starts_at = scales_at + o.chunks * 4;
  const int64_t bytes = (o.t.w.k + 1) / 2;
  const I table = Codes::Numbers();
  __m512 total[M];
#pragma GCC unroll 4
  for (int r = 0; r < M; ++r) total[r] = _mm512_setzero_ps();
  for (int64_t c = 0; c < o.chunks; ++c) {
    ahead.Prefetch(c);
    const int64_t at = c * simd::kFourBitChunkBytes, left = bytes - at;
    const bool whole = left >= simd::kFourBitChunkBytes;
    const __mmask64 mask = whole ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    // All quads are loaded first, so that the products can run part by part. Then x needs only two
    // registers per row, and all sums fit the registers.
    I quads[kQuads][kQuads];
#pragma GCC unroll 4
    for (int q = 0; q < kQuads; ++q) {
      const Quad quad(rows.row + q * kQuads, at, mask, whole);
#pragma GCC unroll 4
      for (int part = 0; part < kQuads; ++part) quads[q][part] = quad.part[part];
    }
    I sums[M][kHalves][kQuads];
#pragma GCC unroll 4
    for (int r = 0; r < M; ++r) {
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
#pragma GCC unroll 4
        for (int q = 0; q < kQuads; ++q) sums[r][h][q] = _mm512_setzero_si512();
      }
    }
    const auto add = [&]<int kPart>() __attribute__((always_inline)) {
      I even[M], odd[M];
#pragma GCC unroll 4
      for (int r = 0; r < M; ++r) {
        const char* codes = x[r] + c * simd::kFourBitChunk;
        even[r] = Spread<kPart>(Load(codes));
        odd[r] = Spread<kPart>(Load(codes + simd::kFourBitChunk / 2));
      }
#pragma GCC unroll 4
      for (int q = 0; q < kQuads; ++q) {
        const I low = Codes::Low(quads[q][kPart], table);
        const I high = Codes::High(quads[q][kPart], table);
#pragma GCC unroll 4
        for (int r = 0; r < M; ++r) {
          I& sum = sums[r][kPart * kHalves / kQuads][q];
          AddLanes(sum, low, even[r]);
          AddLanes(sum, high, odd[r]);
        }
      }
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
#pragma GCC unroll 4
    for (int r = 0; r < M; ++r) {
      I lanes[kHalves][kQuads];
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) TransposeLanes(sums[r][h], lanes[h]);
      __m512 inner = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int b = 0; b < kBlocks; ++b) {
        const int first = b / kHalves * kLanesOfBlock;
        I sum = lanes[b % kHalves][first];
#pragma GCC unroll 3
        for (int l = 1; l < kLanesOfBlock; ++l) sum = Add(sum, lanes[b % kHalves][first + l]);
        const int64_t block = c * kBlocks + b;
        sum = Add(sum, Set1(simd::LoadNumber<FourBitDot, int32_t>(x[r] + starts_at + block * 4)));
        const __m512 scale = _mm512_load_ps(o.panel.scales + block * kLanes);
        inner = _mm512_fmadd_ps(ToFloat(sum), scale, inner);
      }
      const float scale = simd::LoadNumber<FourBitDot, float>(x[r] + scales_at + c * 4);
      total[r] = _mm512_fmadd_ps(inner, _mm512_set1_ps(scale), total[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < M; ++r) simd::StoreFourBit<FourBitDot>(o, r, total[r]);
}

}  // namespace

void LinearFourBit(const LinearTask& t) { simd::LinearFourBit<FourBitDot>(t); }

}  // namespace switchyard::kernels::cpu::avx512
