// x · Wᵀ of int8 codes: exact sums in int32, so that every instruction set and every order gives
// the same bits; then sum · scale of the row · scale of the weight row.
//
// D, one for each instruction set, has vectors of kBytes codes and products of such vectors that
// add up in int32 lanes. Where it multiplies unsigned by signed codes, weights enter as w +
// kOffset, and kOffset · Σ x is taken away in the end.
#pragma once

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"

namespace switchyard::kernels::cpu::simd {

constexpr int kInt8Cols = 4;  // weight rows of a register tile

template <class D>
const int8_t* Int8WeightRow(const WeightRef& w, int64_t n) {
  return static_cast<const int8_t*>(w.data) + (w.row0 + n * w.row_step) * w.stored_k + w.col0;
}

template <class D>
void StoreInt8Sums(const LinearTask& t, int64_t x_row, int64_t i, int64_t n, int64_t count,
                   const int32_t* sums) {
  const Int8Row& row = t.codes.rows[x_row];
  for (int64_t c = 0; c < count; ++c) {
    float scale;  // scales of a mapped file lie at any address
    __builtin_memcpy(&scale,
                     static_cast<const char*>(t.w.scales) + (t.w.row0 + (n + c) * t.w.row_step) * 4,
                     sizeof(scale));
    // Modulo 2^32, as the lanes' sums: only the result is sure to fit.
    const auto sum = static_cast<int32_t>(static_cast<uint32_t>(sums[c]) -
                                          D::kOffset * static_cast<uint32_t>(row.sum));
    float value = static_cast<float>(sum) * row.scale * scale;
    if (t.bias != nullptr) value += t.bias[n + c];
    float& y = t.y[i * t.ldy + n + c];
    y = t.accumulate ? y + value : value;
  }
}

// Rows [i, i + M) of x with the `count` (1 to 4) weight rows from n on; missing ones repeat the
// last.
template <class D, int M, bool kPrefetch>
void Int8Tile(const LinearTask& t, int64_t i, int64_t n, int64_t count) {
  int64_t rows[M];
  const int8_t* x[M];
  for (int r = 0; r < M; ++r) {
    rows[r] = t.codes.ids != nullptr ? t.codes.ids[i + r] : i + r;
    x[r] = t.codes.base + rows[r] * t.codes.ld;
  }
  const int8_t* w[kInt8Cols];
  for (int c = 0; c < kInt8Cols; ++c) w[c] = Int8WeightRow<D>(t.w, n + (c < count ? c : count - 1));
  typename D::Sum acc[M][kInt8Cols];
  for (int r = 0; r < M; ++r) {
    for (int c = 0; c < kInt8Cols; ++c) acc[r][c] = D::Zero();
  }
  const auto step = [&](int64_t j, const auto& load) __attribute__((always_inline)) {
    typename D::Codes xv[M];
    for (int r = 0; r < M; ++r) xv[r] = D::Load(x[r] + j);
    for (int c = 0; c < kInt8Cols; ++c) {
      const auto wv = D::Weights(load(w[c] + j));
      for (int r = 0; r < M; ++r) acc[r][c] = D::Add(acc[r][c], wv, xv[r]);
    }
  };
  // The next use of these streams is kInt8Cols rows on.
  const int64_t next = kInt8Cols * t.w.row_step * t.w.stored_k - t.w.k;
  int64_t j = 0;
  for (; j + D::kBytes <= t.w.k; j += D::kBytes) {
    if constexpr (kPrefetch) {
      const int64_t ahead = j + kPrefetchBytes < t.w.k ? kPrefetchBytes : kPrefetchBytes + next;
      for (int c = 0; c < kInt8Cols; ++c) __builtin_prefetch(w[c] + j + ahead, 0, 2);
    }
    step(
        j, [](const int8_t* p) __attribute__((always_inline)) { return D::Load(p); });
  }
  if (j < t.w.k) {  // rows of x are padded with zeros, rows of weights with one another
    const int64_t left = t.w.k - j;
    step(
        j, [left](const int8_t* p) __attribute__((always_inline)) { return D::LoadN(p, left); });
  }
  for (int r = 0; r < M; ++r) {
    int32_t sums[kInt8Cols];
    D::Reduce4(acc[r], sums);
    StoreInt8Sums<D>(t, rows[r], i + r, n, count, sums);
  }
}

// Calls f.template operator()<M>() for M = m, 1 to kTileRows.
template <class D, int M = D::kTileRows, class Function>
void ForInt8Rows(int64_t m, const Function& f) {
  if constexpr (M > 1) {
    if (m < M) return ForInt8Rows<D, M - 1>(m, f);
  }
  f.template operator()<M>();
}

// A tile of x rows stays in L1 while it meets kPanelRows weight rows, which stay in L2.
template <class D>
void LinearInt8(const LinearTask& t) {
  const int64_t tiles = (t.m + D::kTileRows - 1) / D::kTileRows;
  for (int64_t panel = t.begin; panel < t.end; panel += kPanelRows) {
    const int64_t end = panel + kPanelRows < t.end ? panel + kPanelRows : t.end;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = t.m * tile / tiles;
      ForInt8Rows<D>(t.m * (tile + 1) / tiles - i, [&]<int M>() {
        for (int64_t n = panel; n < end; n += kInt8Cols) {
          const int64_t count = end - n < kInt8Cols ? end - n : kInt8Cols;
          tile == 0 ? Int8Tile<D, M, true>(t, i, n, count) : Int8Tile<D, M, false>(t, i, n, count);
        }
      });
    }
  }
}

}  // namespace switchyard::kernels::cpu::simd
