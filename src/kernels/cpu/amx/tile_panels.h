// AMX products for many rows of x: weights are packed in panels, and x is read unpacked, 32 rows at
// a time.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/amx/tile_block.h"
#include "kernels/cpu/heuristics.h"

namespace switchyard::kernels::cpu::amx {

// Makes rows [i, i + count) contiguous: returns them in place if they already are, else copies them
// to `memory`.
template <class P>
TileRows GatherRows(const TileRows& rows, int64_t i, int64_t count, char* memory) {
  if (rows.ids == nullptr) return {rows.base + i * rows.ld, rows.ld, nullptr};
  const int32_t* ids = rows.ids + i;
  int64_t run = 1;
  while (run < count && ids[run] == ids[0] + run) ++run;
  if (run == count) return {rows.base + ids[0] * rows.ld, rows.ld, nullptr};
  for (int64_t r = 0; r < count; ++r) {
    const char* from = rows.base + ids[r] * rows.ld;
    char* to = memory + r * rows.ld;
    for (int64_t k = 0; k < rows.ld; k += kPanelLine) {
      _mm512_store_si512(to + k, _mm512_loadu_si512(from + k));
    }
  }
  return {memory, rows.ld, nullptr};
}

// Multiplies rows [i, i + count) of x with vectors v and v + 1 of the panel's outputs, or with v
// alone if it is the last.
template <class P>
void MultiplyVectors(ShapedTiles<P>& tiles, const LinearTask& t, const Panel& p, const TileRows& x,
                     int64_t i, int64_t count, int64_t n, int v, NextPanelPrefetch<P>& next,
                     int64_t ask) {
  const int vectors = p.vectors - v > 1 ? kBlockVectors : 1;
  const BlockShape shape = {static_cast<int>(count), vectors * kPanelLanes};
  const BlockTask block = {
      .rows = x.base,
      .ld = x.ld,
      .lines = (t.w.k * P::kWeightBytes + kPanelLine - 1) / kPanelLine,
      .tail = nullptr,
      .panel = p.codes + v * kPanelLine,
      .vectors = p.vectors,
  };
  // A product takes 16 cycles, in which memory delivers about one line.
  const int64_t most = (shape.tall() ? 2 : 1) * vectors;
  alignas(64) char sums[4 * kTileSize];
  MultiplyBlock<P>(tiles, shape, block, next, ask < most ? ask : most, sums);
  for (int64_t r = 0; r < count; ++r) {
    const char* of_row = sums + r / kTileRows * 2 * kTileSize + r % kTileRows * kTileBytes;
    for (int part = 0; part < vectors; ++part) {
      const __m512 value = P::Outputs(t, p, i + r, v + part, of_row + part * kTileSize);
      avx512::StoreOutputs<P>(t, p, i + r, n, v + part, value);
    }
  }
}

// Implements KernelTable::linear_int8 and linear_bf16. t.scratch has LinearScratch(k) floats.
template <class P>
void MultiplyPanels(const LinearTask& t) {
  const TileRows rows = P::RowsOf(t);
  const bool deep = t.w.k * P::kWeightBytes * kMaxPanelCols > kMaxPanelBytes;
  const int64_t columns = deep ? kMaxPanelCols / 2 : kMaxPanelCols;
  char* gathered = reinterpret_cast<char*>(t.scratch);
  char* memory = gathered + kBlockRows * rows.ld;
  ShapedTiles<P> tiles;
  avx512::ForPanels<P>(
      t, columns, memory, [&](const Panel& p, int64_t n, NextPanelPrefetch<P>& next) {
        const int64_t pairs = (p.vectors + 1) / kBlockVectors;
        const int64_t blocks = (t.m + kBlockRows - 1) / kBlockRows * pairs;
        const int64_t steps = blocks * ((t.w.k * P::kWeightBytes + kPanelLine - 1) / kPanelLine);
        const int64_t ask = (next.Lines() + steps - 1) / steps;
        for (int64_t i = 0; i < t.m; i += kBlockRows) {
          const int64_t count = t.m - i < kBlockRows ? t.m - i : kBlockRows;
          const TileRows x = GatherRows<P>(rows, i, count, gathered);
          for (int v = 0; v < p.vectors; v += kBlockVectors) {
            MultiplyVectors<P>(tiles, t, p, x, i, count, n, v, next, ask);
          }
        }
      });
}

}  // namespace switchyard::kernels::cpu::amx
