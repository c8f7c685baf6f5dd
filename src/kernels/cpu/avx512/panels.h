// Weights in panels, for products of many rows of x: 16 outputs side by side, four bytes of K of
// each, then the next four, so that one vector, or a row of a tile, adds to 16 outputs at once and
// sums need no adding across lanes. Packing 1 KiB takes about 100 instructions; the weights
// themselves stay as they are stored, mapped and shared.
//
// P, one for each kind of product and instruction set, says what is packed, and keeps apart the
// functions that a linker may not share (kernels/cpu/leaves.h):
//   static constexpr int kWeightBytes;        of an element
//   static constexpr bool kScaled;            weights have a scale for each row
//   static __m512i Encode(__m512i weights);   as the product takes them
#pragma once

#include <immintrin.h>

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::avx512 {

constexpr int kPanelLanes = 16;  // outputs of a vector
constexpr int kPanelLine = 64;   // bytes of K packed at a time; rows of x are padded to it
constexpr int kPanelGroup = 4;   // bytes of K that meet in one lane

// A task's part of the weights in panel order, with what its outputs are scaled by.
struct Panel {
  const char* codes;    // [bytes of K / 4][vectors][16][4]
  const float* scales;  // [vectors · 16], or null
  const float* bias;    // likewise
  int64_t count;        // outputs
  int vectors;
};

template <class P>
const char* PanelWeightRow(const WeightRef& w, int64_t n) {
  const int64_t first = (w.row0 + n * w.row_step) * w.stored_k + w.col0;
  return static_cast<const char*>(w.data) + first * P::kWeightBytes;
}

// 16 × 16 numbers of 32 bits, in place.
template <class P>
void Transpose(__m512i (&r)[kPanelLanes]) {
  __m512i t[kPanelLanes];
  for (int i = 0; i < kPanelLanes; i += 4) {
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
template <class P>
void Pack(const WeightRef& w, int64_t n, int64_t count, int vectors, char* out) {
  const int64_t bytes = w.k * P::kWeightBytes;
  for (int v = 0; v < vectors; ++v) {
    const char* rows[kPanelLanes];
    for (int i = 0; i < kPanelLanes; ++i) {
      const int64_t row = v * kPanelLanes + i < count ? v * kPanelLanes + i : count - 1;
      rows[i] = PanelWeightRow<P>(w, n + row);
    }
    char* to = out + v * kPanelLine;
    for (int64_t k = 0; k < bytes; k += kPanelLine) {
      // Zeros beyond the last column, where x has zeros too.
      const int64_t left = bytes - k;
      const __mmask64 mask = left < kPanelLine ? (__mmask64{1} << left) - 1 : ~__mmask64{0};
      __m512i lines[kPanelLanes];
      for (const char* row : rows) __builtin_prefetch(row + k + kPackAhead);
      for (int i = 0; i < kPanelLanes; ++i) lines[i] = _mm512_maskz_loadu_epi8(mask, rows[i] + k);
      Transpose<P>(lines);
      for (const __m512i& line : lines) {
        _mm512_store_si512(to, P::Encode(line));
        to += vectors * kPanelLine;
      }
    }
  }
}

// Touches the lines of the weight rows that the next panel packs, a few at a time.
template <class P>
struct NextPanel {
  const WeightRef& w;
  int64_t row, end;
  int64_t at = 0;

  int64_t Lines() const {
    return (end - row) * ((w.k * P::kWeightBytes + kPanelLine - 1) / kPanelLine);
  }
  void Touch(int64_t lines) {
    for (; lines > 0 && row < end; --lines) {
      __builtin_prefetch(PanelWeightRow<P>(w, row) + at, 0, 2);
      at += kPanelLine;
      if (at >= w.k * P::kWeightBytes) {
        at = 0;
        ++row;
      }
    }
  }
};

// Sums of int8 codes as what they stand for; `v`: which vector of the panel's outputs.
template <class P>
[[gnu::always_inline]] inline __m512 ScaledSums(__m512i sums, float row_scale, const Panel& p,
                                                int v) {
  const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(row_scale));
  return _mm512_mul_ps(value, _mm512_load_ps(p.scales + v * kPanelLanes));
}

// Vector `v` of row i's outputs, of a panel that begins at output n.
template <class P>
[[gnu::always_inline]] inline void StoreOutputs(const LinearTask& t, const Panel& p, int64_t i,
                                                int64_t n, int v, __m512 value) {
  const int64_t left = p.count - v * kPanelLanes;
  const auto mask = static_cast<__mmask16>(left < kPanelLanes ? (1u << left) - 1 : 0xffffu);
  float* y = t.y + i * t.ldy + n + v * kPanelLanes;
  if (p.bias != nullptr) value = _mm512_add_ps(value, _mm512_load_ps(p.bias + v * kPanelLanes));
  if (t.accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), value);
  _mm512_mask_storeu_ps(y, mask, value);
}

// multiply(panel, n, next) for each panel of at most `columns` outputs, a multiple of 16 up to
// kMostPanelCols, packed into `memory`, which is aligned to 64 bytes.
template <class P, class Multiply>
void ForPanels(const LinearTask& t, int64_t columns, char* memory, const Multiply& multiply) {
  alignas(64) float scales[kMostPanelCols] = {}, bias[kMostPanelCols] = {};
  for (int64_t n = t.begin; n < t.end; n += columns) {
    const int64_t count = t.end - n < columns ? t.end - n : columns;
    const auto vectors = static_cast<int>((count + kPanelLanes - 1) / kPanelLanes);
    Pack<P>(t.w, n, count, vectors, memory);
    for (int64_t c = 0; c < count; ++c) {
      // Scales of a mapped file lie at any address.
      if constexpr (P::kScaled) {
        __builtin_memcpy(&scales[c],
                         static_cast<const char*>(t.w.scales) +
                             (t.w.row0 + (n + c) * t.w.row_step) * sizeof(float),
                         sizeof(float));
      }
      if (t.bias != nullptr) bias[c] = t.bias[n + c];
    }
    const Panel panel = {memory, scales, t.bias != nullptr ? bias : nullptr, count, vectors};
    const int64_t after = t.end - n - count;
    NextPanel<P> next = {t.w, n + count, n + count + (after < columns ? after : columns)};
    multiply(panel, n, next);
  }
}

}  // namespace switchyard::kernels::cpu::avx512
