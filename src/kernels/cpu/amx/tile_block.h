// AMX block product: up to 32 rows by 32 columns, accumulated in four tiles over all of K. Two
// tiles of unpacked rows and two tiles of a panel (avx512/panels.h) stream through. Sixteen lines
// of a panel (64 bytes of K) are one tile. With many rows of x the weights are the panel
// (tile_panels.h), otherwise x is (tile_rows.h). The results are bit-identical.
//
// P is a product kind as in panels.h, plus:
//   static TileRows RowsOf(const LinearTask& t);           rows of x
//   template <int kC, int kA, int kB> static void Multiply(Tiles& tiles);
//   static __m512 Outputs(const LinearTask& t, const Panel& p, int64_t i, int v, const void* sums);
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512/panels.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::amx {

using avx512::kPanelLanes;
using avx512::kPanelLine;
using avx512::NextPanelPrefetch;
using avx512::Panel;

// Row i is at base + (ids ? ids[i] : i) · ld bytes. ld is a multiple of 64; padding columns are
// zero.
struct TileRows {
  const char* base;
  int64_t ld;
  const int32_t* ids;

  const char* Row(int64_t i) const { return base + (ids != nullptr ? ids[i] : i) * ld; }
};

constexpr int kBlockRows = 2 * kTileRows, kBlockVectors = 2;
constexpr int64_t kTileSize = int64_t{kTileRows} * kTileBytes;

// Shape of a block of sums: rows by columns, 1 to kBlockRows each.
struct BlockShape {
  int rows, columns;

  bool operator==(const BlockShape&) const = default;
  bool tall() const { return rows > kTileRows; }
  bool wide() const { return columns > kTileRows; }
};

// Tiles of a task, reconfigured only when the shape changes. Tiles 0 to 3 hold the sums (index rows
// · 2 + columns), tiles 4 and 5 the rows, 6 and 7 the panel.
template <class P>
class ShapedTiles {
 public:
  Tiles& Of(const BlockShape& shape) {
    if (!(shape == shape_)) Configure(shape);
    shape_ = shape;
    return tiles_;
  }

 private:
  static int Part(int all, int which) {
    const int left = all - which * kTileRows;
    return left < 0 ? 0 : left < kTileRows ? left : kTileRows;
  }
  void Configure(const BlockShape& shape) {
    TileConfig config = {.palette = 1};
    const auto use = [&](int tile, int rows, int words) {
      if (rows == 0 || words == 0) return;
      config.rows[tile] = static_cast<uint8_t>(rows);
      config.bytes[tile] = static_cast<uint16_t>(words * avx512::kPanelGroup);
    };
    for (const int i : {0, 1}) {
      for (const int j : {0, 1}) use(2 * i + j, Part(shape.rows, i), Part(shape.columns, j));
      use(4 + i, Part(shape.rows, i), kTileBytes / avx512::kPanelGroup);
      use(6 + i, kTileRows, Part(shape.columns, i));
    }
    tiles_.Configure(config);
  }

  Tiles tiles_;
  BlockShape shape_ = {0, 0};
};

// Operands of a block. Rows have `lines` lines of 64 bytes along K and a stride of `ld` bytes. The
// panel has `vectors` vectors. If `tail` is not null, it has one more line of each row, with a
// stride of 64 bytes.
struct BlockTask {
  const char* rows;
  int64_t ld;
  int64_t lines;
  const char* tail;
  const char* panel;
  int64_t vectors;
};

template <class P, int M, int N>
[[gnu::always_inline]] inline void MultiplyLine(Tiles& tiles, const char* rows, int64_t ld,
                                                const char* panel, int64_t step) {
  tiles.Load<4>(rows, ld);
  tiles.Load<6>(panel, step);
  P::template Multiply<0, 4, 6>(tiles);
  if constexpr (N > 1) {
    tiles.Load<7>(panel + kPanelLine, step);
    P::template Multiply<1, 4, 7>(tiles);
  }
  if constexpr (M > 1) {
    tiles.Load<5>(rows + kTileRows * ld, ld);
    P::template Multiply<2, 5, 6>(tiles);
    if constexpr (N > 1) P::template Multiply<3, 5, 7>(tiles);
  }
}

// Multiplies M row tiles with N panel tiles. sums: [4][16][16]. Prefetches `ask` lines of the next
// weights per processed line.
template <class P, int M, int N>
[[gnu::noinline]] void MultiplyTiles(Tiles& tiles, const BlockTask& b, NextPanelPrefetch<P>& next,
                                     int64_t ask, char* sums) {
  tiles.Zero<0>();
  if constexpr (N > 1) tiles.Zero<1>();
  if constexpr (M > 1) tiles.Zero<2>();
  if constexpr (M > 1 && N > 1) tiles.Zero<3>();
  const char *rows = b.rows, *panel = b.panel;
  const int64_t step = b.vectors * kPanelLine;
  for (int64_t line = 0; line < b.lines; ++line) {
    next.Touch(ask);
    MultiplyLine<P, M, N>(tiles, rows, b.ld, panel, step);
    rows += kPanelLine;
    panel += kTileRows * step;
  }
  if (b.tail != nullptr) MultiplyLine<P, M, N>(tiles, b.tail, kPanelLine, panel, step);
  tiles.Store<0>(sums, kTileBytes);
  if constexpr (N > 1) tiles.Store<1>(sums + kTileSize, kTileBytes);
  if constexpr (M > 1) tiles.Store<2>(sums + 2 * kTileSize, kTileBytes);
  if constexpr (M > 1 && N > 1) tiles.Store<3>(sums + 3 * kTileSize, kTileBytes);
}

template <class P>
void MultiplyBlock(ShapedTiles<P>& shaped, const BlockShape& shape, const BlockTask& b,
                   NextPanelPrefetch<P>& next, int64_t ask, char* sums) {
  Tiles& tiles = shaped.Of(shape);
  if (shape.tall()) {
    shape.wide() ? MultiplyTiles<P, 2, 2>(tiles, b, next, ask, sums)
                 : MultiplyTiles<P, 2, 1>(tiles, b, next, ask, sums);
  } else {
    shape.wide() ? MultiplyTiles<P, 1, 2>(tiles, b, next, ask, sums)
                 : MultiplyTiles<P, 1, 1>(tiles, b, next, ask, sums);
  }
}

}  // namespace switchyard::kernels::cpu::amx
