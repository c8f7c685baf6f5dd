// x · Wᵀ of int8 codes: exact sums in int32, so that every instruction set and every order gives
// the same bits; then sum · scale of the row · scale of the weight row.
//
// D, one for each instruction set, has vectors of kBytes codes and products of such vectors that
// add up in int32 lanes, and says how many weight rows a tile has for its rows of x (Cols, or
// CachedCols where weights lie in a cache) and how far ahead it asks memory (Ahead). Where it
// multiplies unsigned by signed codes, weights enter as w + kOffset, and kOffset · Σ x is taken
// away in the end.
#pragma once

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/leaves.h"
#include "kernels/cpu/simd/ahead.h"

namespace switchyard::kernels::cpu::simd {

constexpr int64_t kInt8Rows = 16;  // weight rows that meet all rows of x before the next ones

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

// Rows [i, i + M) of x with the `count` (1 to N) weight rows from n on; missing ones repeat the
// last. Asks memory for what comes kAhead bytes later, unless that is 0.
template <class D, int M, int N, int64_t kAhead>
void Int8Tile(const LinearTask& t, int64_t i, int64_t n, int64_t count) {
  int64_t rows[M];
  const int8_t* x[M];
  for (int r = 0; r < M; ++r) {
    rows[r] = t.codes.ids != nullptr ? t.codes.ids[i + r] : i + r;
    x[r] = t.codes.base + rows[r] * t.codes.ld;
  }
  const int8_t* w[N];
  for (int c = 0; c < N; ++c) w[c] = Int8WeightRow<D>(t.w, n + (c < count ? c : count - 1));
  constexpr int kSums = (M * N + 3) / 4 * 4;
  typename D::Sum acc[kSums];  // r · N + c
#pragma GCC unroll 32
  for (int s = 0; s < kSums; ++s) acc[s] = D::Zero();
  const auto step = [&](int64_t j, const auto& load) __attribute__((always_inline)) {
    typename D::Codes xv[M];
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) xv[r] = D::Load(x[r] + j);
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      const auto wv = D::Weights(load(w[c] + j));
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) acc[r * N + c] = D::Add(acc[r * N + c], wv, xv[r]);
    }
  };
  const Ahead<D, N, kAhead> ahead(t.w.k, t.w.row_step * t.w.stored_k, t.end - n);
  int64_t j = 0;
  for (; j + D::kBytes <= t.w.k; j += D::kBytes) {
    if constexpr (kAhead > 0) {
      const int64_t at = j + ahead.Of(j);
      for (int c = 0; c < N; ++c) __builtin_prefetch(w[c] + at, 0, 2);
    }
    step(
        j, [](const int8_t* p) __attribute__((always_inline)) { return D::Load(p); });
  }
  if (j < t.w.k) {  // rows of x are padded with zeros, rows of weights with one another
    const int64_t left = t.w.k - j;
    step(
        j, [left](const int8_t* p) __attribute__((always_inline)) { return D::LoadN(p, left); });
  }
  int32_t sums[kSums];
#pragma GCC unroll 8
  for (int s = 0; s < kSums; s += 4) {
    const typename D::Sum four[4] = {acc[s], acc[s + 1], acc[s + 2], acc[s + 3]};
    D::Reduce4(four, sums + s);
  }
  for (int r = 0; r < M; ++r) StoreInt8Sums<D>(t, rows[r], i + r, n, count, sums + r * N);
}

// Calls f.template operator()<M>() for M = m, 1 to kTileRows.
template <class D, int M = D::kTileRows, class Function>
void ForInt8Rows(int64_t m, const Function& f) {
  if constexpr (M > 1) {
    if (m < M) return ForInt8Rows<D, M - 1>(m, f);
  }
  f.template operator()<M>();
}

// Weight rows [n, end) with the rows [i, i + M) of x.
template <class D, int M, int N, int64_t kAhead>
void RunInt8Tiles(const LinearTask& t, int64_t i, int64_t n, int64_t end) {
  for (; n < end; n += N) Int8Tile<D, M, N, kAhead>(t, i, n, end - n < N ? end - n : N);
}

// A few weight rows at a time meet all rows of x: the first tile of these brings them in from
// memory, which goes on for what was asked for while others take them from L1.
template <class D>
void LinearInt8(const LinearTask& t) {
  const int64_t tiles = (t.m + D::kTileRows - 1) / D::kTileRows;
  for (int64_t n = t.begin; n < t.end; n += kInt8Rows) {
    const int64_t end = n + kInt8Rows < t.end ? n + kInt8Rows : t.end;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = t.m * tile / tiles;
      ForInt8Rows<D>(t.m * (tile + 1) / tiles - i, [&]<int M>() {
        tile == 0 ? RunInt8Tiles<D, M, D::Cols(M), D::Ahead(M)>(t, i, n, end)
                  : RunInt8Tiles<D, M, D::CachedCols(M), 0>(t, i, n, end);
      });
    }
  }
}

}  // namespace switchyard::kernels::cpu::simd
