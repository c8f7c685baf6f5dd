// Products of bfloat16 rows with FP8 weights. Every e4m3 number is a bfloat16 number, so codes are
// converted exactly, by tables of 128 magnitudes (AVX512_VBMI), and multiplied with vdpbf16ps. A
// lane sums 128 columns as in bf16_rows.cc, from zero on. Then it adds sum · scale with a fused
// multiply-add, one block of 128 columns after the other. Lanes are reduced at the end. So an
// output depends on no other row.
#include <immintrin.h>

#include "kernels/cpu/avx512/bf16_pairs.h"
#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/weight_prefetch.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

using simd::kTileCols;

constexpr int kBits = 8;
constexpr int64_t kStep = 64;  // columns whose codes are one cache line
constexpr int64_t kHalf = sizeof(uint16_t);
constexpr int kMagnitudes = 128;
// Rows of x of a tile of converted weights, which are used from three rows on: the tables for codes
// take 6 registers, so a tile of three rows and codes would not fit. 12 sums of blocks and 12
// totals take 24 of 32 registers.
constexpr int kTileRows = 3;

// The bfloat16 numbers of the codes 0 to 127, as low and high bytes.
struct Magnitudes {
  alignas(64) uint8_t low[kMagnitudes] = {};
  alignas(64) uint8_t high[kMagnitudes] = {};

  constexpr Magnitudes() {
    for (int code = 0; code < kMagnitudes; ++code) {
      const int bits = BitsOf(code);
      low[code] = static_cast<uint8_t>(bits & 255);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
  static constexpr int BitsOf(int code) {
    const int exponent = code >> 3, mantissa = code & 7;
    if (code == kMagnitudes - 1) return 0x7fc0;  // NaN
    if (exponent > 0) return (exponent + 120) << 7 | mantissa << 4;
    if (mantissa == 0) return 0;
    // mantissa · 2^-9: a subnormal of e4m3, but not of bfloat16.
    const int first = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
    return (118 + first) << 7 | (mantissa << (7 - first) & 0x7f);
  }
};
constexpr Magnitudes kTable;

class Decoder {
 public:
  [[gnu::always_inline]] Decoder()
      : low_{Load(kTable.low), Load(kTable.low + kStep)},
        high_{Load(kTable.high), Load(kTable.high + kStep)},
        order_(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7)),
        signs_(_mm512_set1_epi8(static_cast<char>(0x80))) {}

  // Converts 64 codes: columns 0 to 31 and 32 to 63.
  [[gnu::always_inline]] void operator()(__m512i codes, __m512i& first, __m512i& second) const {
    // Bytes are interleaved within lanes of 128 bits, so lane i gets columns 8 i and 32 + 8 i.
    codes = _mm512_permutexvar_epi64(order_, codes);
    const __m512i low = _mm512_permutex2var_epi8(low_[0], codes, low_[1]);
    __m512i high = _mm512_permutex2var_epi8(high_[0], codes, high_[1]);
    high = _mm512_ternarylogic_epi64(high, codes, signs_, 0xf8);  // high | (codes & signs)
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }

 private:
  [[gnu::always_inline]] static __m512i Load(const void* p) { return _mm512_load_si512(p); }

  __m512i low_[2], high_[2], order_, signs_;
};

[[gnu::always_inline]] inline const char* InputRow(const LinearTask& t, int64_t i) {
  const int64_t row = t.bf16_rows.ids != nullptr ? t.bf16_rows.ids[i] : i;
  return reinterpret_cast<const char*>(t.bf16_rows.base + row * t.bf16_rows.ld);
}

[[gnu::always_inline]] inline __m512i LoadCodes(const char* p, int64_t left) {
  if (left >= kStep) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi8((uint64_t{1} << left) - 1, p);
}

// Byte offset of 64 columns from j on in converted rows. The four weight rows of a tile take turns,
// so that they are one stream.
[[gnu::always_inline]] inline int64_t ConvertedAt(int64_t j, int c) {
  return (j * kTileCols + c * kStep) * kHalf;
}

// The scale of a row's block of 128 columns, or of a whole row of kFp8Channel.
struct RowScales {
  const char* first;
  int64_t step;  // bytes to the scale of the next block

  [[gnu::always_inline]] __m512 At(int64_t column) const {
    float scale;
    __builtin_memcpy(&scale, first + column / kFp8BlockSize * step, sizeof(scale));
    return _mm512_set1_ps(scale);
  }
};

[[gnu::always_inline]] inline RowScales ScalesOf(const WeightRef& w, int64_t row) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  const auto* scales = static_cast<const char*>(w.scales);
  const int64_t stored = simd::StoredRow<Vec>(w, row);
  if (w.format == WeightFormat::kFp8Channel) return {scales + stored * kBytes, 0};
  const simd::Blocks blocks = simd::BlocksOf<Vec>(w, stored / kFp8BlockSize, kFp8BlockSize);
  return {scales + blocks.first * kBytes, kBytes};
}

// Codes of up to N weight rows from n on; rows beyond `count` repeat the last one.
template <int N>
struct CodeRows {
  const char* w[N];
  RowScales scales[N];

  [[gnu::always_inline]] CodeRows(const LinearTask& t, int64_t n, int64_t count) {
    for (int c = 0; c < N; ++c) {
      const int64_t row = n + (c < count ? c : count - 1);
      w[c] = simd::RowBytes<Vec>(t.w, row, kBits);
      scales[c] = ScalesOf(t.w, row);
    }
  }
};

// Tile of M rows of x and N weight rows. Weights: Start(j, left) prepares columns [j, j + 64), of
// which `left` exist. Get(c, half) has those of weight row c in the given half of 32 columns.
template <int M, int N, class Weights>
[[gnu::always_inline]] inline void Multiply(const LinearTask& t, int64_t i, int64_t n,
                                            int64_t count, const RowScales (&scales)[N],
                                            Weights weights) {
  const char* x[M];
  for (int r = 0; r < M; ++r) x[r] = InputRow(t, i + r);
  __m512 total[M][N];
#pragma GCC unroll 4
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) total[r][c] = _mm512_setzero_ps();
  }
  for (int64_t block = 0; block < t.w.k; block += kFp8BlockSize) {
    __m512 sums[M][N];
#pragma GCC unroll 4
    for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) sums[r][c] = _mm512_setzero_ps();
    }
    const auto add = [&](int64_t j, int half) __attribute__((always_inline)) {
      __m512i w[N];
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
        w[c] = weights.Get(c, half);
        if (M > 1) asm("" : "+v"(w[c]));  // prevents a reload for each product
      }
#pragma GCC unroll 4
      for (int r = 0; r < M; ++r) {
        __m512i xv = _mm512_loadu_si512(x[r] + j * kHalf);
        if (N > 1) asm("" : "+v"(xv));
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) AddPairs(sums[r][c], w[c], xv);
      }
    };
    const int64_t end = block + kFp8BlockSize < t.w.k ? block + kFp8BlockSize : t.w.k;
    for (int64_t j = block; j < end; j += kStep) {
      weights.Start(j, t.w.k - j);
      add(j, 0);
      // Rows of x are padded to whole vectors, not to whole steps.
      if (t.w.k - j > kStep / 2) add(j + kStep / 2, 1);
    }
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      const __m512 scale = scales[c].At(block);
#pragma GCC unroll 4
      for (int r = 0; r < M; ++r) total[r][c] = _mm512_fmadd_ps(sums[r][c], scale, total[r][c]);
    }
  }
  simd::FinishTile<Vec, M, N>(t, i, n, count, total);
}

// Weights of Multiply: codes, which are converted once for all rows of x.
template <int N, class Prefetch>
struct Codes {
  const Decoder& decode;
  const CodeRows<N>& rows;
  const Prefetch& ahead;
  __m512i bits[N][2];

  [[gnu::always_inline]] void Start(int64_t j, int64_t left) {
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      if constexpr (N > 1) __builtin_prefetch(rows.w[c] + j + ahead.Of(j), 0, 2);
      decode(LoadCodes(rows.w[c] + j, left), bits[c][0], bits[c][1]);
    }
  }
  [[gnu::always_inline]] __m512i Get(int c, int half) const { return bits[c][half]; }
};

// Weights of Multiply: bfloat16 numbers that Convert has written.
struct Converted {
  const char* first;
  const char* step;

  [[gnu::always_inline]] void Start(int64_t j, int64_t) { step = first + ConvertedAt(j, 0); }
  [[gnu::always_inline]] __m512i Get(int c, int half) const {
    return _mm512_load_si512(step + ConvertedAt(0, c) + half * kStep);
  }
};

// Converts codes within the product, for all M rows of the task. With one row of x, weight rows are
// processed one after another, as in bf16_rows.cc.
template <int M, int N>
[[gnu::noinline]] void MultiplyCodes(const LinearTask& t) {
  const Decoder decode;
  for (int64_t n = t.begin; n < t.end; n += N) {
    const int64_t count = t.end - n < N ? t.end - n : N;
    const CodeRows<N> rows(t, n, count);
    const simd::WeightPrefetch<Vec, N, N == 1 ? 0 : kPrefetchBytes> ahead(
        t.w.k, simd::RowStride<Vec>(t.w, kBits), t.end - n, rows.w[0], t.next);
    Multiply<M, N>(t, 0, n, count, rows.scales, Codes<N, decltype(ahead)>{decode, rows, ahead, {}});
  }
}

// Converts the codes of four weight rows to bfloat16 at `out`.
[[gnu::noinline]] void Convert(const LinearTask& t, int64_t n, const CodeRows<kTileCols>& rows,
                               char* out) {
  const Decoder decode;
  const simd::WeightPrefetch<Vec, kTileCols, kPrefetchBytes> ahead(
      t.w.k, simd::RowStride<Vec>(t.w, kBits), t.end - n, rows.w[0], t.next);
  for (int64_t j = 0; j < t.w.k; j += kStep) {
#pragma GCC unroll 4
    for (int c = 0; c < kTileCols; ++c) {
      __builtin_prefetch(rows.w[c] + j + ahead.Of(j), 0, 2);
      __m512i first, second;
      decode(LoadCodes(rows.w[c] + j, t.w.k - j), first, second);
      char* to = out + ConvertedAt(j, c);
      _mm512_store_si512(to, first);
      _mm512_store_si512(to + kStep, second);
    }
  }
}

template <int M>
[[gnu::noinline]] void ConvertedTile(const LinearTask& t, int64_t i, int64_t n, int64_t count,
                                     const CodeRows<kTileCols>& rows, const char* converted) {
  Multiply<M, kTileCols>(t, i, n, count, rows.scales, Converted{converted, converted});
}

}  // namespace

void LinearFp8BF16(const LinearTask& t) {
  if (t.m == 0) return;
  if (t.m == 1) return MultiplyCodes<1, 1>(t);
  if (t.m == 2) return MultiplyCodes<2, kTileCols>(t);
  char* converted = reinterpret_cast<char*>(t.scratch);
  const int64_t tiles = (t.m + kTileRows - 1) / kTileRows;
  for (int64_t n = t.begin; n < t.end; n += kTileCols) {
    const int64_t count = t.end - n < kTileCols ? t.end - n : kTileCols;
    const CodeRows<kTileCols> rows(t, n, count);
    Convert(t, n, rows, converted);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = t.m * tile / tiles;
      simd::ForRows<Vec, kTileRows>(t.m * (tile + 1) / tiles - i, [&]<int M>() {
        ConvertedTile<M>(t, i, n, count, rows, converted);
      });
    }
  }
}

}  // namespace switchyard::kernels::cpu::avx512
