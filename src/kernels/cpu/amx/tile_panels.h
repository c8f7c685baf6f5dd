// Products in tiles: 32 rows of x by 32 outputs at a time, whose sums stay in four tiles over all
// of K, while two tiles of rows of x (as they lie) and two of weights (a panel, avx512/panels.h)
// pass. Sixteen rows of a panel, 64 bytes of K, are a tile.
//
// P is a kind of product, as panels.h wants it, and
//   static TileRows RowsOf(const LinearTask& t);           x
//   template <int kC, int kA, int kB> static void Multiply(Tiles& tiles);
//   static __m512 Outputs(const LinearTask& t, const Panel& p, int64_t i, int v, const void* sums);
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512/panels.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::amx {

using avx512::kPanelLanes;
using avx512::kPanelLine;
using avx512::NextPanel;
using avx512::Panel;

// Row i is at base + (ids ? ids[i] : i) · ld bytes, ld a multiple of 64, with zeros after the last
// column.
struct TileRows {
  const char* base;
  int64_t ld;
  const int32_t* ids;
};

constexpr int kBlockRows = 2 * kTileRows, kBlockVectors = 2;
constexpr int64_t kTileSize = int64_t{kTileRows} * kTileBytes;

// The shapes for a block of so many rows, 1 to kBlockRows. Sums are tiles 0 to 3 (rows · 2 +
// outputs), rows of x 4 and 5, weights 6 and 7.
template <class P>
void ConfigureBlock(Tiles& tiles, int rows) {
  TileConfig config = {.palette = 1};
  const auto use = [&](int tile, int tile_rows) {
    config.rows[tile] = static_cast<uint8_t>(tile_rows);
    config.bytes[tile] = kTileBytes;
  };
  const int first = rows < kTileRows ? rows : kTileRows, second = rows - first;
  for (const int tile : {0, 1, 4}) use(tile, first);
  for (const int tile : {2, 3, 5}) {
    if (second > 0) use(tile, second);
  }
  for (const int tile : {6, 7}) use(tile, kTileRows);
  tiles.Configure(config);
}

// M tiles of rows of x by N of weights, both for `lines` · 64 bytes of K. sums [4][16][16]. Asks
// for `ask` lines of the next panel with each, but no more than there are products of 16 cycles:
// about what memory delivers meanwhile.
template <class P, int M, int N>
[[gnu::noinline]] void MultiplyBlock(Tiles& tiles, const char* x, int64_t ldx, const char* w,
                                     int64_t ldw, int64_t lines, NextPanel<P>& next, int64_t ask,
                                     char* sums) {
  if (ask > M * N) ask = M * N;
  tiles.Zero<0>();
  if constexpr (N > 1) tiles.Zero<1>();
  if constexpr (M > 1) tiles.Zero<2>();
  if constexpr (M > 1 && N > 1) tiles.Zero<3>();
  const char* second = x + kTileRows * ldx;
  for (int64_t line = 0; line < lines; ++line) {
    next.Touch(ask);
    tiles.Load<4>(x, ldx);
    tiles.Load<6>(w, ldw);
    P::template Multiply<0, 4, 6>(tiles);
    if constexpr (N > 1) {
      tiles.Load<7>(w + kPanelLine, ldw);
      P::template Multiply<1, 4, 7>(tiles);
    }
    if constexpr (M > 1) {
      tiles.Load<5>(second, ldx);
      P::template Multiply<2, 5, 6>(tiles);
      if constexpr (N > 1) P::template Multiply<3, 5, 7>(tiles);
    }
    x += kPanelLine;
    second += kPanelLine;
    w += kTileRows * ldw;
  }
  tiles.Store<0>(sums, kTileBytes);
  if constexpr (N > 1) tiles.Store<1>(sums + kTileSize, kTileBytes);
  if constexpr (M > 1) tiles.Store<2>(sums + 2 * kTileSize, kTileBytes);
  if constexpr (M > 1 && N > 1) tiles.Store<3>(sums + 3 * kTileSize, kTileBytes);
}

// Rows [i, i + count) side by side: as they lie if they do, else copied to `memory`.
template <class P>
TileRows Together(const TileRows& rows, int64_t i, int64_t count, char* memory) {
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

// Two vectors of outputs, or the one that is left, from vector v of the panel on.
template <class P>
void MultiplyVectors(Tiles& tiles, const LinearTask& t, const Panel& p, const TileRows& x,
                     int64_t i, int64_t count, int64_t n, int v, NextPanel<P>& next, int64_t ask) {
  const bool tall = count > kTileRows, wide = p.vectors - v > 1;
  const int64_t ldw = p.vectors * kPanelLine;
  const int64_t lines = (t.w.k * P::kWeightBytes + kPanelLine - 1) / kPanelLine;
  const char* w = p.codes + v * kPanelLine;
  alignas(64) char sums[4 * kTileSize];
  if (tall) {
    wide ? MultiplyBlock<P, 2, 2>(tiles, x.base, x.ld, w, ldw, lines, next, ask, sums)
         : MultiplyBlock<P, 2, 1>(tiles, x.base, x.ld, w, ldw, lines, next, ask, sums);
  } else {
    wide ? MultiplyBlock<P, 1, 2>(tiles, x.base, x.ld, w, ldw, lines, next, ask, sums)
         : MultiplyBlock<P, 1, 1>(tiles, x.base, x.ld, w, ldw, lines, next, ask, sums);
  }
  for (int64_t r = 0; r < count; ++r) {
    const char* of_row = sums + r / kTileRows * 2 * kTileSize + r % kTileRows * kTileBytes;
    for (int part = 0; part < (wide ? 2 : 1); ++part) {
      const __m512 value = P::Outputs(t, p, i + r, v + part, of_row + part * kTileSize);
      avx512::StoreOutputs<P>(t, p, i + r, n, v + part, value);
    }
  }
}

// As Leaves::linear_int8 and linear_bf16; t.scratch: LinearScratch(k).
template <class P>
void MultiplyPanels(const LinearTask& t) {
  const TileRows rows = P::RowsOf(t);
  const bool deep = t.w.k * P::kWeightBytes * kMostPanelCols > kMostPanelBytes;
  const int64_t columns = deep ? kMostPanelCols / 2 : kMostPanelCols;
  char* gathered = reinterpret_cast<char*>(t.scratch);
  char* memory = gathered + kBlockRows * rows.ld;
  Tiles tiles;
  int64_t configured = 0;
  avx512::ForPanels<P>(t, columns, memory, [&](const Panel& p, int64_t n, NextPanel<P>& next) {
    const int64_t pairs = (p.vectors + 1) / kBlockVectors;
    const int64_t blocks = (t.m + kBlockRows - 1) / kBlockRows * pairs;
    const int64_t steps = blocks * ((t.w.k * P::kWeightBytes + kPanelLine - 1) / kPanelLine);
    const int64_t ask = (next.Lines() + steps - 1) / steps;
    for (int64_t i = 0; i < t.m; i += kBlockRows) {
      const int64_t count = t.m - i < kBlockRows ? t.m - i : kBlockRows;
      if (count != configured) ConfigureBlock<P>(tiles, static_cast<int>(count));
      configured = count;
      const TileRows x = Together<P>(rows, i, count, gathered);
      for (int v = 0; v < p.vectors; v += kBlockVectors) {
        MultiplyVectors<P>(tiles, t, p, x, i, count, n, v, next, ask);
      }
    }
  });
}

// Codes by codes; weights enter as they are.
struct Int8Product {
  static constexpr int kWeightBytes = 1;
  static constexpr bool kScaled = true;

  static __m512i Encode(__m512i weights) { return weights; }
  static TileRows RowsOf(const LinearTask& t) {
    return {reinterpret_cast<const char*>(t.codes.base), t.codes.ld, t.codes.ids};
  }
  template <int kC, int kA, int kB>
  [[gnu::always_inline]] static void Multiply(Tiles& tiles) {
    tiles.MultiplyInt8<kC, kA, kB>();
  }
  static __m512 Outputs(const LinearTask& t, const Panel& p, int64_t i, int v, const void* sums) {
    const Int8Row& row = t.codes.rows[t.codes.ids != nullptr ? t.codes.ids[i] : i];
    return avx512::ScaledSums<Int8Product>(_mm512_load_si512(sums), row.scale, p, v);
  }
};

// Pairs of bfloat16. An output is a chain over steps of 32 columns of K, each the sum of its even
// columns plus that of its odd ones: one order, whatever the number of rows.
struct BF16Product {
  static constexpr int kWeightBytes = 2;
  static constexpr bool kScaled = false;

  static __m512i Encode(__m512i weights) { return weights; }
  static TileRows RowsOf(const LinearTask& t) {
    return {reinterpret_cast<const char*>(t.halves.base), t.halves.ld * kWeightBytes, t.halves.ids};
  }
  template <int kC, int kA, int kB>
  [[gnu::always_inline]] static void Multiply(Tiles& tiles) {
    tiles.MultiplyBFloat16<kC, kA, kB>();
  }
  static __m512 Outputs(const LinearTask&, const Panel&, int64_t, int, const void* sums) {
    return _mm512_load_ps(sums);
  }
};

}  // namespace switchyard::kernels::cpu::amx
