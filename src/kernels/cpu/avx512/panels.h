// Weight panels for products of many rows of x. A panel interleaves 16 outputs: four bytes of K of
// each output, then the next four. One vector, or one tile row, then accumulates 16 outputs, and
// sums need no reduction across lanes. Packing 1 KiB takes about 100 instructions. The stored
// weights remain unchanged, mapped and shared.
//
// P, one type per product kind and instruction set, defines what is packed. As a template argument
// P also gives each instruction set its own functions, which the linker must not merge
// (kernels/cpu/kernel_table.h):
//   static constexpr int kWeightBytes;        bytes per weight
//   static constexpr bool kScaled;            one scale per weight row
//   static __m512i Encode(__m512i weights);   encodes weights as operands
#pragma once

#include <immintrin.h>

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx512 {

constexpr int kPanelLanes = 16;  // outputs per vector
constexpr int kPanelLine = 64;   // bytes of K packed at a time; rows of x are padded to it
constexpr int kPanelGroup = 4;   // bytes of K accumulated in one lane
constexpr int kHalfLine = kPanelLine / 2;
constexpr int kPanelGroups = kHalfLine / kPanelGroup;  // groups in half a line

// A task's packed weights with the scales and biases of its outputs.
struct Panel {
  const char* codes;    // [bytes of K / 4][vectors][16][4]
  const float* scales;  // [vectors · 16], or null
  const float* bias;    // [vectors · 16], or null
  int64_t count;        // outputs
  int vectors;
};

template <class P>
const char* PanelWeightRow(const WeightRef& w, int64_t n) {
  const int64_t first = (w.row0 + n * w.row_step) * w.stored_k + w.col0;
  return static_cast<const char*>(w.data) + first * P::kWeightBytes;
}

// 64 bytes of each of sixteen weight rows, in two halves of 32 bytes. halves[h][i] has half h of
// rows r and r + 4, where r = i / 4 · 8 + i % 4.
struct PanelLines {
  __m512i halves[2][kPanelGroups];
};

// Transposes half of the lines to eight groups of four bytes of K. Each group has these bytes of
// all sixteen rows.
template <class P>
[[gnu::always_inline]] inline void Transpose(const __m512i (&pairs)[kPanelGroups],
                                             __m512i (&groups)[kPanelGroups]) {
  // The 128-bit lanes of t[g][c] are columns c and 4 + c of rows 8 · g to 8 · g + 3. They are
  // followed by the same columns of rows 8 · g + 4 to 8 · g + 7.
  __m512i t[2][4];
#pragma GCC unroll 2
  for (int g = 0; g < 2; ++g) {
    const __m512i* r = pairs + 4 * g;
    const __m512i ab = _mm512_unpacklo_epi32(r[0], r[1]);
    const __m512i cd = _mm512_unpacklo_epi32(r[2], r[3]);
    const __m512i ab_high = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i cd_high = _mm512_unpackhi_epi32(r[2], r[3]);
    t[g][0] = _mm512_unpacklo_epi64(ab, cd);
    t[g][1] = _mm512_unpackhi_epi64(ab, cd);
    t[g][2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    t[g][3] = _mm512_unpackhi_epi64(ab_high, cd_high);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    groups[c] = _mm512_shuffle_i32x4(t[0][c], t[1][c], 0x88);
    groups[4 + c] = _mm512_shuffle_i32x4(t[0][c], t[1][c], 0xdd);
  }
}

// Fills `lines` with 64 bytes of each row. load(row, at) returns 32 bytes from offset `at` (0 or
// 32) of the line; `row` is an element of `rows`.
template <class P, class LoadHalf>
[[gnu::always_inline]] inline void LoadPairs(const char* const (&rows)[kPanelLanes],
                                             const LoadHalf& load, PanelLines& lines) {
#pragma GCC unroll 8
  for (int i = 0; i < kPanelGroups; ++i) {
    const int row = i / 4 * 8 + i % 4;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m512i& pair = lines.halves[half][i];
      const int64_t at = half * kHalfLine;
      pair = _mm512_inserti64x4(_mm512_castsi256_si512(load(rows[row], at)),
                                load(rows[row + 4], at), 1);
      asm("" : "+v"(pair));  // pins the load here instead of at its use
    }
  }
}

// Loads 64 bytes of each row, from byte k on.
template <class P>
[[gnu::always_inline]] inline void LoadLines(const char* const (&rows)[kPanelLanes], int64_t k,
                                             PanelLines& lines) {
  const auto load = [k](const char* row, int64_t at) __attribute__((always_inline)) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + k + at));
  };
  LoadPairs<P>(rows, load, lines);
}

// Sixteen adjacent weight rows [n, n + 16), of which `count` exist; the last one is repeated in
// place of the others. `end`: end of the task's rows.
template <class P>
struct SixteenRows {
  const char* rows[kPanelLanes];
  int64_t bytes;      // bytes per row
  int64_t head;       // bytes before the first cache line boundary; whole groups
  int64_t next_rows;  // offset to the next sixteen rows; 0 if they do not all exist

  SixteenRows(const WeightRef& w, int64_t n, int64_t count, int64_t end) {
    for (int i = 0; i < kPanelLanes; ++i) {
      rows[i] = PanelWeightRow<P>(w, n + (i < count ? i : count - 1));
    }
    bytes = w.k * P::kWeightBytes;
    const auto line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows[0]) % kPanelLine);
    head = (kPanelLine - line) % kPanelLine / kPanelGroup * kPanelGroup;
    if (head >= bytes) head = 0;
    const bool more = n + 2 * kPanelLanes <= end;
    next_rows = more ? kPanelLanes * w.row_step * w.stored_k * P::kWeightBytes : 0;
  }
  // Calls take(lines, groups) for all of K in order: `groups` valid groups, then zeros. Reads cache
  // lines exactly once, because rows a power of two apart evict one another from L1. If the row
  // stride is not a whole number of lines, this holds for the first row's lines only.
  template <class Take>
  [[gnu::always_inline]] void ForLines(const Take& take) const {
    PanelLines lines;
    int64_t k = 0;
    for (int64_t part = head; k < bytes; part = bytes - k) {
      if (part > 0) {
        LoadPart(k, part, lines);
        take(lines, (part + kPanelGroup - 1) / kPanelGroup);
        k += part;
      }
      for (; k + kPanelLine <= bytes; k += kPanelLine) {
        PrefetchAhead(k);
        LoadLines<P>(rows, k, lines);
        take(lines, kPanelLine / kPanelGroup);
      }
    }
  }

 private:
  // Prefetches data kPackPrefetchDistance bytes after byte k, in these rows or in the next sixteen.
  // Each call fetches kPackPrefetchBytes of two rows, which is faster than one line of each row.
  [[gnu::always_inline]] void PrefetchAhead(int64_t k) const {
    constexpr int64_t kRowsAtOnce = kPanelLanes * kPanelLine / kPackPrefetchBytes;
    const int64_t first = k % kPackPrefetchBytes / kPanelLine * kRowsAtOnce;
    int64_t at = k - k % kPackPrefetchBytes + kPackPrefetchDistance;
    if (at >= bytes) at += next_rows - bytes;
    for (int64_t r = first; r < first + kRowsAtOnce; ++r) {
      for (int64_t line = 0; line < kPackPrefetchBytes; line += kPanelLine) {
        __builtin_prefetch(rows[r] + at + line, 0, 2);
      }
    }
  }
  // Loads `count` bytes, fewer than a line, with zero padding.
  [[gnu::always_inline]] void LoadPart(int64_t k, int64_t count, PanelLines& lines) const {
    const uint64_t mask = (uint64_t{1} << count) - 1;
    const auto load = [ k, mask ](const char* row, int64_t at) __attribute__((always_inline)) {
      return _mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask >> at), row + k + at);
    };
    LoadPairs<P>(rows, load, lines);
  }
};

// Packs weight rows [n, n + count) into `out`. If the last vector is incomplete, the last row is
// repeated.
template <class P>
void Pack(const WeightRef& w, int64_t n, int64_t count, int64_t end, int vectors, char* out) {
  for (int v = 0; v < vectors; ++v) {
    const int64_t first = v * kPanelLanes;
    const SixteenRows<P> rows(w, n + first, count - first, end);
    const int64_t step = vectors * kPanelLine;  // bytes from one group to the next
    char* to = out + v * kPanelLine;
    const auto store = [&](const PanelLines& lines, int64_t left) __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (const auto& half : lines.halves) {
        __m512i groups[kPanelGroups];
        Transpose<P>(half, groups);
#pragma GCC unroll 8
        for (int c = 0; c < kPanelGroups; ++c) {
          if (c >= left) break;
          _mm512_store_si512(to, P::Encode(groups[c]));
          to += step;
        }
        left -= kPanelGroups;
      }
    };
    rows.ForLines(store);
    // Zero padding up to a whole line, matching the zero padding of x.
    const int64_t padded = (rows.bytes + kPanelLine - 1) / kPanelLine * kPanelLine;
    const char* last = out + padded / kPanelGroup * step;
    for (; to < last; to += step) _mm512_store_si512(to, P::Encode(_mm512_setzero_si512()));
  }
}

// Software prefetch of the next panel's weight rows, a few cache lines per call.
template <class P>
struct NextPanelPrefetch {
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

// Applies row and weight scales to int8 sums; `v`: vector index within the panel's outputs.
template <class P>
[[gnu::always_inline]] inline __m512 ScaledSums(__m512i sums, float row_scale, const Panel& p,
                                                int v) {
  const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(row_scale));
  return _mm512_mul_ps(value, _mm512_load_ps(p.scales + v * kPanelLanes));
}

// Stores vector `v` of row i's outputs, for a panel that starts at output n.
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

// Calls run(panel, n) for `columns` outputs at a time (a multiple of 16, at most kMaxPanelCols).
// The panel is not packed yet.
template <class P, class Run>
void ForOutputs(const LinearTask& t, int64_t columns, const Run& run) {
  alignas(64) float scales[kMaxPanelCols] = {}, bias[kMaxPanelCols] = {};
  for (int64_t n = t.begin; n < t.end; n += columns) {
    const int64_t count = t.end - n < columns ? t.end - n : columns;
    for (int64_t c = 0; c < count; ++c) {
      // Copied with memcpy, because scales in a mapped file may be unaligned.
      if constexpr (P::kScaled) {
        __builtin_memcpy(&scales[c],
                         static_cast<const char*>(t.w.scales) +
                             (t.w.row0 + (n + c) * t.w.row_step) * sizeof(float),
                         sizeof(float));
      }
      if (t.bias != nullptr) bias[c] = t.bias[n + c];
    }
    const auto vectors = static_cast<int>((count + kPanelLanes - 1) / kPanelLanes);
    run(Panel{nullptr, scales, t.bias != nullptr ? bias : nullptr, count, vectors}, n);
  }
}

// Calls multiply(panel, n, next) for each panel of at most `columns` outputs, packed into `memory`,
// which is aligned to 64 bytes.
template <class P, class Multiply>
void ForPanels(const LinearTask& t, int64_t columns, char* memory, const Multiply& multiply) {
  ForOutputs<P>(t, columns, [&](Panel panel, int64_t n) {
    Pack<P>(t.w, n, panel.count, t.end, panel.vectors, memory);
    panel.codes = memory;
    const int64_t next_row = n + panel.count, after = t.end - next_row;
    NextPanelPrefetch<P> next = {t.w, next_row, next_row + (after < columns ? after : columns)};
    multiply(panel, n, next);
  });
}

}  // namespace switchyard::kernels::cpu::avx512
