// Panel products (panels.h) in register tiles of six rows of x by four vectors of outputs. One
// vector of weights multiplies four bytes of a row of x, broadcast. Each output is the sum of one
// lane.
//
// P is a product kind as in panels.h, plus:
//   using Sum = …;                                         vector of accumulators
//   static Sum Zero();
//   static void Add(Sum& sum, __m512i weights, __m512i x);
//   static int64_t Row(const LinearTask& t, int64_t i);    row index of x
//   static const char* Data(const LinearTask& t, int64_t row);
//   static __m512 Outputs(const LinearTask& t, const Panel& p, int64_t row, int v, Sum sums);
#pragma once

#include <immintrin.h>

#include "kernels/cpu/avx512/panels.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx512 {

// With four vectors, 24 accumulators, 4 weights and a row use 29 of 32 registers, and 24 products
// hide 10 loads.
constexpr int kPanelTileRows = 6;
static_assert(kMaxPanelCols == 4 * kPanelLanes);

// Tile of rows [i, i + M) of x and a panel of N vectors of outputs from n on. Per 64 bytes of K,
// prefetches `lines` cache lines of the next panel, at most M · N: a core receives about one line
// in the time of 16 products. Packing prefetches the remaining lines.
template <class P, int M, int N>
[[gnu::noinline]] void PanelTile(const LinearTask& t, const Panel& p, int64_t i, int64_t n,
                                 NextPanelPrefetch<P>& next, int64_t lines) {
  int64_t rows[M];
  const char* x[M];
  for (int r = 0; r < M; ++r) {
    rows[r] = P::Row(t, i + r);
    x[r] = P::Data(t, rows[r]);
  }
  typename P::Sum acc[M][N];
#pragma GCC unroll 6
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) acc[r][v] = P::Zero();
  }
  const char* w = p.codes;
  const int64_t bytes = t.w.k * P::kWeightBytes;
  if (lines > M * N) lines = M * N;
  for (int64_t k = 0; k < bytes;) {
    next.Touch(lines);
    const int64_t line_end = k + kPanelLine < bytes ? k + kPanelLine : bytes;
    for (; k < line_end; k += kPanelGroup, w += N * kPanelLine) {
      __m512i weights[N];
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) weights[v] = _mm512_load_si512(w + v * kPanelLine);
#pragma GCC unroll 6
      for (int r = 0; r < M; ++r) {
        int32_t group;
        __builtin_memcpy(&group, x[r] + k, sizeof(group));
        const __m512i four = _mm512_set1_epi32(group);
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) P::Add(acc[r][v], weights[v], four);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      StoreOutputs<P>(t, p, i + r, n, v, P::Outputs(t, p, rows[r], v, acc[r][v]));
    }
  }
}

template <class P, int N, int M = kPanelTileRows>
void RunPanelTile(const LinearTask& t, const Panel& p, int64_t i, int64_t m, int64_t n,
                  NextPanelPrefetch<P>& next, int64_t lines) {
  if constexpr (M > 1) {
    if (m < M) return RunPanelTile<P, N, M - 1>(t, p, i, m, n, next, lines);
  }
  PanelTile<P, M, N>(t, p, i, n, next, lines);
}

template <class P, int N>
void MultiplyPanel(const LinearTask& t, const Panel& p, int64_t n, NextPanelPrefetch<P>& next) {
  const int64_t tiles = (t.m + kPanelTileRows - 1) / kPanelTileRows;
  const int64_t steps = tiles * ((t.w.k * P::kWeightBytes + kPanelLine - 1) / kPanelLine);
  const int64_t lines = (next.Lines() + steps - 1) / steps;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t i = t.m * tile / tiles;
    RunPanelTile<P, N>(t, p, i, t.m * (tile + 1) / tiles - i, n, next, lines);
  }
}

// Runs a whole task. t.scratch has LinearScratch(k) floats.
template <class P>
void MultiplyPanels(const LinearTask& t) {
  char* memory = reinterpret_cast<char*>(t.scratch);
  const bool deep = t.w.k * P::kWeightBytes * kMaxPanelCols > kMaxPanelBytes;
  const int64_t columns = deep ? kMaxPanelCols / 2 : kMaxPanelCols;
  ForPanels<P>(t, columns, memory, [&](const Panel& p, int64_t n, NextPanelPrefetch<P>& next) {
    switch (p.vectors) {
      case 1:
        return MultiplyPanel<P, 1>(t, p, n, next);
      case 2:
        return MultiplyPanel<P, 2>(t, p, n, next);
      case 3:
        return MultiplyPanel<P, 3>(t, p, n, next);
      default:
        return MultiplyPanel<P, 4>(t, p, n, next);
    }
  });
}

}  // namespace switchyard::kernels::cpu::avx512
