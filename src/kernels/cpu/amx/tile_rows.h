// AMX products for few rows of x: x is packed into a panel once per task, and weights are read
// unpacked, 32 rows at a time. Packing the weights would take four times as long as multiplying
// them with 16 rows of x.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/amx/tile_block.h"
#include "kernels/cpu/heuristics.h"

namespace switchyard::kernels::cpu::amx {

// Packs rows [0, count) of x, `lines` · 64 bytes each, into [bytes of K / 4][vectors][16][4].
template <class P>
void PackRows(const TileRows& x, int64_t count, int64_t lines, int64_t vectors, char* out) {
  for (int64_t v = 0; v < vectors; ++v) {
    const char* rows[kPanelLanes];
    for (int64_t r = 0; r < kPanelLanes; ++r) {
      const int64_t i = v * kPanelLanes + r;
      rows[r] = x.Row(i < count ? i : count - 1);
    }
    char* to = out + v * kPanelLine;
    for (int64_t line = 0; line < lines; ++line) {
      avx512::PanelLines of_rows;
      avx512::LoadLines<P>(rows, line * kPanelLine, of_rows);
#pragma GCC unroll 2
      for (const auto& half : of_rows.halves) {
        __m512i groups[avx512::kPanelGroups];
        avx512::Transpose<P>(half, groups);
#pragma GCC unroll 8
        for (const __m512i group : groups) {
          _mm512_store_si512(to, group);
          to += vectors * kPanelLine;
        }
      }
    }
  }
}

// Copies the tail of `count` weight rows, after their last whole line, with zero padding.
template <class P>
void CopyTails(const WeightRef& w, int64_t n, int64_t count, int64_t lines, char* out) {
  const int64_t at = lines * kPanelLine, left = w.k * P::kWeightBytes - at;
  const auto mask = static_cast<__mmask64>((uint64_t{1} << left) - 1);
  for (int64_t r = 0; r < count; ++r) {
    const char* from = avx512::PanelWeightRow<P>(w, n + r) + at;
    _mm512_store_si512(out + r * kPanelLine, _mm512_maskz_loadu_epi8(mask, from));
  }
}

// Transposes a tile of sums (one row per weight row) and stores outputs of `count` rows of x from
// row i on.
template <class P>
void StoreTile(const LinearTask& t, const Panel& p, int64_t i, int64_t count, int64_t n, int v,
               const char* sums) {
  const char* rows[kPanelLanes];
  for (int64_t r = 0; r < kPanelLanes; ++r) rows[r] = sums + r * kTileBytes;
  alignas(64) __m512i columns[2][avx512::kPanelGroups];
  avx512::PanelLines lines;
  avx512::LoadLines<P>(rows, 0, lines);
  avx512::Transpose<P>(lines.halves[0], columns[0]);
  avx512::Transpose<P>(lines.halves[1], columns[1]);
  for (int64_t r = 0; r < count; ++r) {
    const __m512 value =
        P::Outputs(t, p, i + r, v, &columns[r / avx512::kPanelGroups][r % avx512::kPanelGroups]);
    avx512::StoreOutputs<P>(t, p, i + r, n, v, value);
  }
}

// Multiplies the weight rows of p, from n on, with all rows of x.
template <class P>
void MultiplyWeightRows(ShapedTiles<P>& tiles, const LinearTask& t, const Panel& p, int64_t n,
                        const char* x, int64_t vectors) {
  const int64_t bytes = t.w.k * P::kWeightBytes, lines = bytes / kPanelLine;
  alignas(64) char tail[kBlockRows * kPanelLine], sums[4 * kTileSize];
  if (lines * kPanelLine < bytes) CopyTails<P>(t.w, n, p.count, lines, tail);
  const int64_t next_row = n + p.count, after = t.end - next_row;
  NextPanelPrefetch<P> next = {t.w, next_row, next_row + (after < kBlockRows ? after : kBlockRows)};
  const int64_t steps = (vectors + 1) / kBlockVectors * (lines > 0 ? lines : 1);
  const int64_t ask = (next.Lines() + steps - 1) / steps;
  for (int64_t v = 0; v < vectors; v += kBlockVectors) {
    const int64_t i = v * kPanelLanes;
    const int64_t count = t.m - i < kBlockRows ? t.m - i : kBlockRows;
    const BlockTask block = {
        .rows = avx512::PanelWeightRow<P>(t.w, n),
        .ld = t.w.row_step * t.w.stored_k * P::kWeightBytes,
        .lines = lines,
        .tail = lines * kPanelLine < bytes ? tail : nullptr,
        .panel = x + v * kPanelLine,
        .vectors = vectors,
    };
    MultiplyBlock<P>(tiles, {static_cast<int>(p.count), static_cast<int>(count)}, block, next, ask,
                     sums);
    for (int64_t tile = 0; tile < 4; ++tile) {
      const int64_t first = tile % 2 * kTileRows, left = count - first;
      const int of_weights = static_cast<int>(tile / 2);
      if (left <= 0 || of_weights >= p.vectors) continue;
      StoreTile<P>(t, p, i + first, left < kTileRows ? left : kTileRows, n, of_weights,
                   sums + tile * kTileSize);
    }
  }
}

// Implements KernelTable::linear_int8 and linear_bf16 for 1 to kTilesMaxPackedRows rows. t.scratch
// has LinearScratch(k) floats.
template <class P>
void MultiplyFewRows(const LinearTask& t) {
  const int64_t lines = (t.w.k * P::kWeightBytes + kPanelLine - 1) / kPanelLine;
  const int64_t vectors = (t.m + kPanelLanes - 1) / kPanelLanes;
  char* x = reinterpret_cast<char*>(t.scratch);
  PackRows<P>(P::RowsOf(t), t.m, lines, vectors, x);
  // Prefetches the first weight rows of the task, because no earlier block has done so.
  NextPanelPrefetch<P> first = {t.w, t.begin,
                                t.end - t.begin < kBlockRows ? t.end : t.begin + kBlockRows};
  first.Touch(first.Lines());
  ShapedTiles<P> tiles;
  avx512::ForOutputs<P>(t, kBlockRows, [&](const Panel& p, int64_t n) {
    MultiplyWeightRows<P>(tiles, t, p, n, x, vectors);
  });
}

}  // namespace switchyard::kernels::cpu::amx
