#include "kernels/cpu/avx512/int8_panels.h"

#include <immintrin.h>

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

constexpr int kLanes = 16;    // outputs of a vector
constexpr int kLine = 64;     // codes of K packed at a time; rows of x are padded to it
constexpr int kDepth = 4;     // codes of K that meet in one lane
constexpr int kVectors = 4;   // of a tile: with 6 rows 24 sums, 4 weights and a row fill 29 of 32
constexpr int kTileRows = 6;  // registers, and 10 loads hide behind 24 products
constexpr int kSteps = kLine / kDepth;
static_assert(kInt8PanelCols == kVectors * kLanes);

// A task's part of the weights in panel order, with what its outputs are scaled by.
struct Panel {
  const char* codes;    // [k / 4][vectors][16][4], unsigned: code + 128
  const float* scales;  // [vectors · 16]
  const float* bias;    // likewise, or null
  int64_t count;        // outputs
  int vectors;
};

const char* WeightRow(const WeightRef& w, int64_t n) {
  return static_cast<const char*>(w.data) + (w.row0 + n * w.row_step) * w.stored_k + w.col0;
}

// _mm512_dpbusd_epi32 in place: from the intrinsic GCC 12 makes copies of the sums and spills them.
void AddProducts(__m512i& sum, __m512i weights, __m512i codes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(codes));
}

// 16 × 16 numbers of 32 bits, in place.
void Transpose(__m512i (&r)[kLanes]) {
  __m512i t[kLanes];
  for (int i = 0; i < kLanes; i += 4) {
    const __m512i ab = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    const __m512i cd = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
    const __m512i ab_high = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i cd_high = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(ab, cd);
    t[i + 1] = _mm512_unpackhi_epi64(ab, cd);
    t[i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    t[i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
  }
  // Now the 128 bits `q` of t[4 · g + c] hold column 4 · q + c of rows 4 · g to 4 · g + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i low = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88);
    const __m512i high = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xdd);
    const __m512i low2 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88);
    const __m512i high2 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xdd);
    r[c] = _mm512_shuffle_i32x4(low, low2, 0x88);
    r[4 + c] = _mm512_shuffle_i32x4(high, high2, 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    r[12 + c] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
}

// Weight rows [n, n + count) into `out`; rows that are missing in the last vector repeat the last.
void Pack(const WeightRef& w, int64_t n, int64_t count, int vectors, char* out) {
  const __m512i offset = _mm512_set1_epi8(-128);
  for (int v = 0; v < vectors; ++v) {
    const char* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const int64_t row = v * kLanes + i < count ? v * kLanes + i : count - 1;
      rows[i] = WeightRow(w, n + row);
    }
    char* to = out + v * kLine;
    for (int64_t k = 0; k < w.k; k += kLine) {
      // Beyond the last column x has zeros, whatever the weights are.
      const __mmask64 mask = w.k - k < kLine ? (__mmask64{1} << (w.k - k)) - 1 : ~__mmask64{0};
      __m512i codes[kLanes];
      for (const char* row : rows) __builtin_prefetch(row + k + kInt8PackAhead);
      for (int i = 0; i < kLanes; ++i) codes[i] = _mm512_maskz_loadu_epi8(mask, rows[i] + k);
      Transpose(codes);
      for (int s = 0; s < kSteps; ++s, to += vectors * kLine) {
        _mm512_store_si512(to, _mm512_xor_si512(codes[s], offset));
      }
    }
  }
}

// Touches the lines of the weight rows that the next panel packs, a few at a time.
struct Prefetch {
  const WeightRef& w;
  int64_t row, end;
  int64_t at = 0;

  void Touch(int64_t lines) {
    for (; lines > 0 && row < end; --lines) {
      __builtin_prefetch(WeightRow(w, row) + at, 0, 2);
      at += kLine;
      if (at >= w.k) {
        at = 0;
        ++row;
      }
    }
  }
};

template <int M, int N>
[[gnu::always_inline]] inline void Store(const LinearTask& t, const Panel& p,
                                         const int64_t (&rows)[M], int64_t i, int64_t n,
                                         const __m512i (&acc)[M][N]) {
  constexpr uint32_t kOffset = 128;  // of the weights: its part in every sum is taken away
#pragma GCC unroll 6
  for (int r = 0; r < M; ++r) {
    const Int8Row& row = t.codes.rows[rows[r]];
    const __m512i offset =
        _mm512_set1_epi32(static_cast<int32_t>(kOffset * static_cast<uint32_t>(row.sum)));
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      const int64_t left = p.count - v * kLanes;
      const auto mask = static_cast<__mmask16>(left < kLanes ? (1u << left) - 1 : 0xffffu);
      float* y = t.y + (i + r) * t.ldy + n + v * kLanes;
      __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(acc[r][v], offset));
      value = _mm512_mul_ps(value, _mm512_set1_ps(row.scale));
      value = _mm512_mul_ps(value, _mm512_load_ps(p.scales + v * kLanes));
      if (p.bias != nullptr) value = _mm512_add_ps(value, _mm512_load_ps(p.bias + v * kLanes));
      if (t.accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), value);
      _mm512_mask_storeu_ps(y, mask, value);
    }
  }
}

// Rows [i, i + M) of x with a panel of N vectors of outputs from n on.
template <int M, int N>
[[gnu::noinline]] void Tile(const LinearTask& t, const Panel& p, int64_t i, int64_t n) {
  int64_t rows[M];
  const int8_t* x[M];
  for (int r = 0; r < M; ++r) {
    rows[r] = t.codes.ids != nullptr ? t.codes.ids[i + r] : i + r;
    x[r] = t.codes.base + rows[r] * t.codes.ld;
  }
  __m512i acc[M][N];
#pragma GCC unroll 6
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) acc[r][v] = _mm512_setzero_si512();
  }
  const char* w = p.codes;
  for (int64_t k = 0; k < t.w.k; k += kDepth, w += N * kLine) {
    __m512i weights[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) weights[v] = _mm512_load_si512(w + v * kLine);
#pragma GCC unroll 6
    for (int r = 0; r < M; ++r) {
      int32_t four;
      __builtin_memcpy(&four, x[r] + k, sizeof(four));
      const __m512i codes = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) AddProducts(acc[r][v], weights[v], codes);
    }
  }
  Store<M, N>(t, p, rows, i, n, acc);
}

template <int N, int M = kTileRows>
void RunTile(const LinearTask& t, const Panel& p, int64_t i, int64_t m, int64_t n) {
  if constexpr (M > 1) {
    if (m < M) return RunTile<N, M - 1>(t, p, i, m, n);
  }
  Tile<M, N>(t, p, i, n);
}

template <int N>
void MultiplyPanel(const LinearTask& t, const Panel& p, int64_t n, Prefetch& prefetch) {
  const int64_t tiles = (t.m + kTileRows - 1) / kTileRows;
  const int64_t rows_left = prefetch.end - prefetch.row;
  const int64_t lines = (rows_left * ((t.w.k + kLine - 1) / kLine) + tiles - 1) / tiles;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t i = t.m * tile / tiles;
    prefetch.Touch(lines);
    RunTile<N>(t, p, i, t.m * (tile + 1) / tiles - i, n);
  }
}

}  // namespace

void LinearInt8Panels(const LinearTask& t) {
  alignas(64) float scales[kInt8PanelCols] = {}, bias[kInt8PanelCols] = {};
  char* codes = reinterpret_cast<char*>(t.scratch);
  for (int64_t n = t.begin; n < t.end; n += kInt8PanelCols) {
    const int64_t count = t.end - n < kInt8PanelCols ? t.end - n : kInt8PanelCols;
    const auto vectors = static_cast<int>((count + kLanes - 1) / kLanes);
    Pack(t.w, n, count, vectors, codes);
    for (int64_t c = 0; c < count; ++c) {
      // Scales of a mapped file lie at any address.
      __builtin_memcpy(&scales[c],
                       static_cast<const char*>(t.w.scales) +
                           (t.w.row0 + (n + c) * t.w.row_step) * sizeof(float),
                       sizeof(float));
      if (t.bias != nullptr) bias[c] = t.bias[n + c];
    }
    const Panel panel = {codes, scales, t.bias != nullptr ? bias : nullptr, count, vectors};
    const int64_t after = t.end - n - count;
    Prefetch prefetch = {t.w, n + count,
                         n + count + (after < kInt8PanelCols ? after : kInt8PanelCols)};
    switch (vectors) {
      case 1:
        MultiplyPanel<1>(t, panel, n, prefetch);
        break;
      case 2:
        MultiplyPanel<2>(t, panel, n, prefetch);
        break;
      case 3:
        MultiplyPanel<3>(t, panel, n, prefetch);
        break;
      default:
        MultiplyPanel<4>(t, panel, n, prefetch);
    }
  }
}

}  // namespace switchyard::kernels::cpu::avx512
