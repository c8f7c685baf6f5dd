// x · Wᵀ for one task. Each output element is one chain of FMAs over vectors along K, then one
// horizontal sum. This order is the same for any number of rows and on every code path.
//
// Few rows of x: weights stream from memory through registers into the products. There are four
// prefetched streams, or one if x is a single row.
//
// Many rows: a panel of weight rows is converted to float32 once and stays in L2. Tiles of 6 × 4
// accumulators (AVX-512) run over kPanelDepth columns at a time, so that a tile's rows of x stay in
// L1. Between column ranges a tile's accumulators are saved as vectors, so each chain continues
// where it stopped.
#pragma once

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/rows.h"
#include "kernels/cpu/simd/weight_prefetch.h"

namespace switchyard::kernels::cpu::simd {

constexpr int kTileCols = 4;  // weight rows per register tile

// Rows of x per tile with unpacked weights. In formats of at least 16 bits, AVX2 tiles have up to
// kDirectRows rows of x. Above kWideRows rows of x they have only two weight rows (CachedCols),
// because GCC 12 would spill 3 × 4 accumulators.
template <class V>
constexpr int DirectRows(int bits) {
  return bits >= 16 ? V::kDirectRows : V::kTileRows;
}
// Weight rows of a tile with unpacked weights that are in a cache.
template <class V>
constexpr int CachedCols(int rows, int bits) {
  return bits >= 16 && rows > V::kWideRows ? kTileCols / 2 : kTileCols;
}

// Shape of a tile that streams weights from memory.
struct DirectShape {
  int cols;       // weight rows
  int64_t ahead;  // prefetch distance in bytes
};
// One row of x gives so little work that the core reads far ahead by itself. Hardware prefetch is
// then fastest with one weight row after another.
template <class V>
constexpr DirectShape ShapeOf(int rows, int bits) {
  if (rows == 1 && bits >= 16)
    return {V::kSingleRowCols, V::kSingleRowCols == 1 ? 0 : kPrefetchBytes};
  return {CachedCols<V>(rows, bits), kPrefetchBytes};
}

template <class V>
const float* XRow(const RowSource& x, int64_t i) {
  return x.base + (x.ids != nullptr ? x.ids[i] : i) * x.ld;
}

// Accumulates products of M rows with N weight rows over columns [0, k) in vector registers.
// Prefetches weights kAhead bytes ahead; 0: no prefetch.
template <class V, class Row, int64_t kAhead, int M, int N>
[[gnu::always_inline]] inline void RunTile(const float* const (&x)[M], const Row (&w)[N], int64_t k,
                                           const WeightPrefetch<V, N, kAhead>& ahead,
                                           typename V::F (&acc)[M][N]) {
  const auto step = [&](int64_t j) __attribute__((always_inline)) {
    typename V::F xv[M];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      xv[i] = V::Load(x[i] + j);
      V::Hold(xv[i]);
    }
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) {
      typename V::F wv = w[c].At(j);
      V::Hold(wv);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) acc[i][c] = V::Fma(xv[i], wv, acc[i][c]);
    }
  };
  int64_t j = 0;
  if constexpr (kAhead > 0) {
    constexpr int kLine = 64 * 8 / Row::kBitsPerWeight;  // columns per cache line
    for (; j + kLine <= k; j += kLine) {
      const int64_t at = j * Row::kBitsPerWeight / 8;
#pragma GCC unroll 8
      for (int c = 0; c < N; ++c) __builtin_prefetch(w[c].p + at + ahead.Of(at), 0, 2);
#pragma GCC unroll 16
      for (int s = 0; s < kLine; s += V::kLanes) step(j + s);
    }
  }
  for (; j + V::kLanes <= k; j += V::kLanes) step(j);
  if (j < k) {
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) {
      const typename V::F wv = w[c].AtN(j, k - j);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        acc[i][c] = V::Fma(V::LoadN(x[i] + j, k - j), wv, acc[i][c]);
      }
    }
  }
}

template <class V>
void StoreSums(const LinearTask& t, int64_t i, int64_t n, int64_t count, const float* sums) {
  float* y = t.y + i * t.ldy + n;
  for (int64_t c = 0; c < count; ++c) {
    float value = sums[c];
    if (t.bias != nullptr) value += t.bias[n + c];
    y[c] = t.accumulate ? y[c] + value : value;
  }
}

// Always inline: otherwise `acc` is passed by address and lives in memory instead of registers.
template <class V, int M, int N>
[[gnu::always_inline]] inline void FinishTile(const LinearTask& t, int64_t i, int64_t n,
                                              int64_t count, const typename V::F (&acc)[M][N]) {
  float sums[kTileCols];
  constexpr int kRows = N == kTileCols / 2 ? 2 : 1;  // rows per horizontal reduction
#pragma GCC unroll 8
  for (int r = 0; r < M; r += kRows) {
    if constexpr (N == 1) {
      sums[0] = V::ReduceAdd(acc[r][0]);
    } else if constexpr (kRows == 2) {
      const auto& other = acc[r + 1 < M ? r + 1 : r];
      V::ReduceAdd4(acc[r][0], acc[r][1], other[0], other[1], sums);
      if (r + 1 < M) StoreSums<V>(t, i + r + 1, n, count, sums + N);
    } else {
      static_assert(N == kTileCols);
      V::ReduceAdd4(acc[r][0], acc[r][1], acc[r][2], acc[r][3], sums);
    }
    StoreSums<V>(t, i + r, n, count, sums);
  }
}

// Tile of rows [i, i + M) of x and `count` (1 to N) weight rows from n on; rows beyond `count`
// repeat the last one.
template <class V, class Row, int M, int N, int64_t kAhead>
void DirectTile(const LinearTask& t, int64_t i, int64_t n, int64_t count) {
  const float* x[M];
  for (int r = 0; r < M; ++r) x[r] = XRow<V>(t.x, i + r);
  Row w[N];
  for (int c = 0; c < N; ++c) {
    MakeRow(t.w, n + (c < count ? c : count - 1), t.scratch + c * ScaleFloats<V>(t.w.k), &w[c]);
  }
  typename V::F acc[M][N];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) acc[r][c] = V::Zero();
  }
  const WeightPrefetch<V, N, kAhead> ahead(t.w.k * Row::kBitsPerWeight / 8,
                                           RowStride<V>(t.w, Row::kBitsPerWeight), t.end - n,
                                           w[0].p, t.next);
  RunTile<V, Row, kAhead>(x, w, t.w.k, ahead, acc);
  FinishTile<V>(t, i, n, count, acc);
}

// Calls f.template operator()<m>() with m as a compile-time constant. m must be at least 1 and at
// most M.
template <class V, int M = V::kTileRows, class Function>
void ForRows(int64_t m, const Function& f) {
  if constexpr (M > 1) {
    if (m < M) return ForRows<V, M - 1>(m, f);
  }
  f.template operator()<M>();
}

// Multiplies weight rows [n, n + count) with the rows [i, i + M) of x.
template <class V, class Row, int M, int N, int64_t kAhead>
void RunDirectTiles(const LinearTask& t, int64_t i, int64_t n, int64_t count) {
  for (int64_t c = 0; c < count; c += N) {
    DirectTile<V, Row, M, N, kAhead>(t, i, n + c, count - c < N ? count - c : N);
  }
}

template <class V, class Row>
void LinearDirect(const LinearTask& t) {
  constexpr int kRows = DirectRows<V>(Row::kBitsPerWeight);
  const int64_t tiles = (t.m + kRows - 1) / kRows;
  for (int64_t n = t.begin; n < t.end; n += kTileCols) {
    const int64_t count = t.end - n < kTileCols ? t.end - n : kTileCols;
    for (int64_t tile = 0; tile < tiles; ++tile) {  // tiles after the first hit L1
      const int64_t i = t.m * tile / tiles;
      ForRows<V, kRows>(t.m * (tile + 1) / tiles - i, [&]<int M>() {
        constexpr int kBits = Row::kBitsPerWeight;
        if (tile > 0) return RunDirectTiles<V, Row, M, CachedCols<V>(M, kBits), 0>(t, i, n, count);
        constexpr DirectShape kShape = ShapeOf<V>(M, kBits);
        RunDirectTiles<V, Row, M, kShape.cols, kShape.ahead>(t, i, n, count);
      });
    }
  }
}

// Software prefetch of the next panel's weight rows, a few cache lines per call.
template <class V>
struct PanelPrefetch {
  const char* row;
  int64_t stride, row_bytes, rows_left;
  int64_t at = 0;

  void Touch(int64_t lines) {
    for (; lines > 0 && rows_left > 0; --lines) {
      __builtin_prefetch(row + at, 0, 2);
      at += 64;
      if (at >= row_bytes) {
        at = 0;
        row += stride;
        --rows_left;
      }
    }
  }
};

// One tile over columns [k0, k0 + depth) of a converted panel. `saved` holds its accumulators
// between calls.
template <class V, int M>
void PanelTile(const LinearTask& t, int64_t i, int64_t n, int64_t count, const float* panel,
               int64_t stride, int64_t k0, int64_t depth, float* saved) {
  const float* x[M];
  for (int r = 0; r < M; ++r) x[r] = XRow<V>(t.x, i + r) + k0;
  F32Row<V> w[kTileCols];
  for (int c = 0; c < kTileCols; ++c) {
    w[c].p = reinterpret_cast<const char*>(panel + (c < count ? c : count - 1) * stride + k0);
  }
  typename V::F acc[M][kTileCols];
  for (int r = 0; r < M; ++r) {
    for (int c = 0; c < kTileCols; ++c) {
      acc[r][c] = k0 == 0 ? V::Zero() : V::Load(saved + (r * kTileCols + c) * V::kLanes);
    }
  }
  RunTile<V, F32Row<V>, 0>(x, w, depth, WeightPrefetch<V, kTileCols, 0>(1, 0, 0), acc);
  if (k0 + depth == t.w.k) return FinishTile<V>(t, i, n, count, acc);
  for (int r = 0; r < M; ++r) {
    for (int c = 0; c < kTileCols; ++c) {
      V::Store(saved + (r * kTileCols + c) * V::kLanes, acc[r][c]);
    }
  }
}

// Multiplies all rows of x with `count` converted weight rows from n on.
template <class V>
void MultiplyPanel(const LinearTask& t, int64_t n, int64_t count, const float* panel,
                   int64_t stride, float* saved, PanelPrefetch<V>& prefetch) {
  constexpr int64_t kSavedTile = V::kTileRows * kTileCols * V::kLanes;
  const int64_t depths = t.w.k / kPanelDepth + 1;
  const int64_t all_tiles =
      (t.m + V::kTileRows - 1) / V::kTileRows * depths * (kPanelRows / kTileCols);
  const int64_t lines = prefetch.rows_left * (prefetch.row_bytes + 63) / 64 / all_tiles + 1;
  for (int64_t begin = 0; begin < t.m; begin += kPanelBatch) {
    const int64_t rows = t.m - begin < kPanelBatch ? t.m - begin : kPanelBatch;
    const int64_t tiles = (rows + V::kTileRows - 1) / V::kTileRows;
    for (int64_t k0 = 0; k0 < t.w.k; k0 += kPanelDepth) {
      const int64_t depth = t.w.k - k0 < kPanelDepth ? t.w.k - k0 : kPanelDepth;
      float* saved_tile = saved;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t i = begin + rows * tile / tiles;
        const int64_t height = begin + rows * (tile + 1) / tiles - i;
        for (int64_t c = 0; c < count; c += kTileCols, saved_tile += kSavedTile) {
          prefetch.Touch(lines);
          const int64_t width = count - c < kTileCols ? count - c : kTileCols;
          ForRows<V>(height, [&]<int M>() {
            PanelTile<V, M>(t, i, n + c, width, panel + c * stride, stride, k0, depth, saved_tile);
          });
        }
      }
    }
  }
}

template <class V>
int BitsPerWeight(WeightFormat format) {
  int bits = 0;
  ForFormat<V>(format, [&]<class Row>() { bits = Row::kBitsPerWeight; });
  return bits;
}

template <class V>
void LinearPanels(const LinearTask& t) {
  // With a power of two as stride, all rows would map to one L1 set.
  const int64_t stride = ScratchStride(t.w.k);
  float* scales = t.scratch;
  float* panel = scales + ScaleFloats<V>(t.w.k);
  float* saved = panel + kPanelRows * stride;
  const int bits = BitsPerWeight<V>(t.w.format);
  for (int64_t n = t.begin; n < t.end; n += kPanelRows) {
    const int64_t count = t.end - n < kPanelRows ? t.end - n : kPanelRows;
    ConvertRows<V>(t.w, n, count, scales, stride, panel);
    const int64_t after = t.end - n - count;
    PanelPrefetch<V> prefetch = {RowBytes<V>(t.w, n + count, bits), RowStride<V>(t.w, bits),
                                 t.w.k * bits / 8, after < kPanelRows ? after : kPanelRows};
    MultiplyPanel<V>(t, n, count, panel, stride, saved, prefetch);
  }
}

template <class V>
void Linear(const LinearTask& t) {
  if (!HasVectorRows<V>(t.w)) return LinearPanels<V>(t);
  ForFormat<V>(t.w.format, [&]<class Row>() {
    constexpr int64_t kDirectTiles =
        Row::kBitsPerWeight >= 16 ? kDirectTiles16Bits : kDirectTiles8Bits;
    if (t.m <= kDirectTiles * V::kTileRows) return LinearDirect<V, Row>(t);
    LinearPanels<V>(t);
  });
}

}  // namespace switchyard::kernels::cpu::simd
