// x · Wᵀ of int8 codes. Sums are exact in int32, so every instruction set and every order gives the
// same bits. The epilogue computes sum · row scale · weight row scale.
//
// D, one per instruction set, defines:
//   kBytes             codes per vector; products accumulate in int32 lanes (Sum)
//   Cols, CachedCols   weight rows of a tile, by rows of x; CachedCols: for weights in a cache
//   PrefetchDistance   prefetch distance in bytes, by rows of x
//   X, Rows            element type of prepared rows of x; Rows prepares up to kMaxRows rows
//   Bytes, BytesN      load a vector of weights, or its first n codes
//   kParts, Part       a vector is multiplied in kParts parts; x is stored in the same parts
//   kOffset            unsigned × signed products: weights are w + kOffset, and the epilogue
//                      subtracts kOffset · Σ x
#pragma once

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/weight_prefetch.h"

namespace switchyard::kernels::cpu::simd {

// Weight rows of a block. A block is multiplied with all rows of x before the next block.
constexpr int64_t kInt8Rows = 16;

// Row i of a task's input is base + (ids ? ids[i] : i - first) · ld.
template <class D>
struct Int8Input {
  const typename D::X* base;
  int64_t ld;
  const int32_t* ids;
  int64_t first;

  const typename D::X* Row(int64_t i) const {
    return base + (ids != nullptr ? ids[i] : i - first) * ld;
  }
};

template <class D>
const int8_t* Int8WeightRow(const WeightRef& w, int64_t n) {
  return static_cast<const int8_t*>(w.data) + (w.row0 + n * w.row_step) * w.stored_k + w.col0;
}

// kInt8Rows weight rows starting at `n`, of which `count` exist.
struct Int8Outputs {
  int64_t n, count;
  float scales[kInt8Rows];  // scales of the weight rows
};

template <class D>
Int8Outputs OutputsAt(const LinearTask& t, int64_t n) {
  Int8Outputs o = {n, t.end - n < kInt8Rows ? t.end - n : kInt8Rows, {}};
  for (int64_t c = 0; c < o.count; ++c) {  // unaligned: scales may be in a mapped file
    const char* scale =
        static_cast<const char*>(t.w.scales) + (t.w.row0 + (n + c) * t.w.row_step) * 4;
    __builtin_memcpy(&o.scales[c], scale, 4);
  }
  return o;
}

// Epilogue of row i of x with the weight rows of o. Loops over all kInt8Rows vectorise.
template <class D>
void StoreInt8Sums(const LinearTask& t, const Int8Outputs& o, int64_t i,
                   const int32_t (&sums)[kInt8Rows]) {
  const Int8Row& row = t.codes.rows[t.codes.ids != nullptr ? t.codes.ids[i] : i];
  const uint32_t offset = D::kOffset * static_cast<uint32_t>(row.sum);
  float values[kInt8Rows];
  for (int64_t c = 0; c < kInt8Rows; ++c) {
    // Modulo 2^32, like the lanes: only the final result is known to fit.
    const auto sum = static_cast<int32_t>(static_cast<uint32_t>(sums[c]) - offset);
    values[c] = static_cast<float>(sum) * row.scale * o.scales[c];
  }
  float* y = t.y + i * t.ldy + o.n;
  if (t.bias == nullptr && !t.accumulate && o.count == kInt8Rows) {
    __builtin_memcpy(y, values, sizeof(values));
    return;
  }
  for (int64_t c = 0; c < o.count; ++c) {
    if (t.bias != nullptr) values[c] += t.bias[o.n + c];
    y[c] = t.accumulate ? y[c] + values[c] : values[c];
  }
}

// Tile of rows [i, i + M) of x and `count` (1 to N) weight rows from n on; rows beyond `count`
// repeat the last one. Prefetches kAhead bytes ahead. kAhead 0: no prefetch; kPrefetchInTurns: as
// `turns` specifies. Sums of row i + r go to sums[r], starting at index `at`.
template <class D, int M, int N, int64_t kAhead>
[[gnu::always_inline]] inline void Int8Tile(const LinearTask& t, const Int8Input<D>& input,
                                            int64_t i, int64_t n, int64_t count, int64_t at,
                                            const PrefetchTurns& turns,
                                            int32_t (&sums)[M][kInt8Rows]) {
  const typename D::X* x[M];
  for (int r = 0; r < M; ++r) x[r] = input.Row(i + r);
  const int8_t* w[N];
  for (int c = 0; c < N; ++c) w[c] = Int8WeightRow<D>(t.w, n + (c < count ? c : count - 1));
  constexpr int kSums = (M * N + 3) / 4 * 4;
  typename D::Sum acc[kSums];  // index r · N + c: row i + r of x, weight row n + c
#pragma GCC unroll 32
  for (int s = 0; s < kSums; ++s) acc[s] = D::Zero();
  // Multiplies the parts of a vector one after the other: the weights of one part stay in registers
  // for all rows of x.
  const auto step = [&](int64_t j, const auto& load) __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int part = 0; part < D::kParts; ++part) {
      typename D::Codes wv[N];
#pragma GCC unroll 8
      for (int c = 0; c < N; ++c) wv[c] = D::Part(load(w[c] + j), part);
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) {
        typename D::Codes xv = D::Load(x[r] + j + part * (D::kBytes / D::kParts));
        if (N > 1) asm("" : "+v"(xv));  // prevents a reload for each product
#pragma GCC unroll 8
        for (int c = 0; c < N; ++c) acc[r * N + c] = D::Add(acc[r * N + c], wv[c], xv);
      }
    }
  };
  const WeightPrefetch<D, N, kAhead> ahead(t.w.k, t.w.row_step * t.w.stored_k, t.end - n, w[0],
                                           t.next);
  PrefetchLines<kAhead> lines(turns);
  const auto whole = [](const int8_t* p) __attribute__((always_inline)) { return D::Bytes(p); };
  int64_t j = 0;
  constexpr int64_t kLine = 64;  // codes per cache line
  for (; j + kLine <= t.w.k; j += kLine) {
    if (lines.Next(turns)) {
      const int64_t place = j + (kAhead > 0 ? ahead.Of(j) : turns.ahead);
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) __builtin_prefetch(w[c] + place, 0, 2);
    }
#pragma GCC unroll 4
    for (int64_t s = 0; s < kLine; s += D::kBytes) step(j + s, whole);
  }
  for (; j + D::kBytes <= t.w.k; j += D::kBytes) step(j, whole);
  if (j < t.w.k) {  // tail: x rows are zero-padded, weight rows are not
    const int64_t left = t.w.k - j;
    step(
        j, [left](const int8_t* p) __attribute__((always_inline)) { return D::BytesN(p, left); });
  }
  int32_t all[kSums];
#pragma GCC unroll 8
  for (int s = 0; s < kSums; s += 4) {
    const typename D::Sum four[4] = {acc[s], acc[s + 1], acc[s + 2], acc[s + 3]};
    D::Reduce4(four, all + s);
  }
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) __builtin_memcpy(sums[r] + at, all + r * N, N * sizeof(int32_t));
}

// Calls f.template operator()<M>() with M = m, 1 to kTileRows.
template <class D, int M = D::kTileRows, class Function>
void ForInt8Rows(int64_t m, const Function& f) {
  if constexpr (M > 1) {
    if (m < M) return ForInt8Rows<D, M - 1>(m, f);
  }
  f.template operator()<M>();
}

// Multiplies the weight rows of o with the rows [i, i + M) of x.
template <class D, int M, int N, int64_t kAhead>
[[gnu::noinline]] void RunInt8Tiles(const LinearTask& t, const Int8Input<D>& x, int64_t i,
                                    const Int8Outputs& o, const PrefetchTurns& turns = {}) {
  static_assert(kInt8Rows % N == 0);
  int32_t sums[M][kInt8Rows] = {};
  for (int64_t c = 0; c < o.count; c += N) {
    Int8Tile<D, M, N, kAhead>(t, x, i, o.n + c, o.count - c < N ? o.count - c : N, c, turns, sums);
  }
  for (int r = 0; r < M; ++r) StoreInt8Sums<D>(t, o, i + r, sums[r]);
}

// Multiplies rows [first, first + count) of x with a few weight rows at a time. The first tile of x
// loads the weights from L2 or memory, later tiles hit L1.
template <class D>
void MultiplyInt8(const LinearTask& t, const Int8Input<D>& x, int64_t first, int64_t count) {
  const int64_t tiles = (count + D::kTileRows - 1) / D::kTileRows;
  for (int64_t n = t.begin; n < t.end; n += kInt8Rows) {
    const Int8Outputs outputs = OutputsAt<D>(t, n);
    const int64_t ahead = PrefetchBlockOffset<D, kBlockPrefetchBytes>(
        kInt8Rows, t.w.k, t.w.row_step * t.w.stored_k, t.end - n, Int8WeightRow<D>(t.w, n), t.next);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = count * tile / tiles;
      ForInt8Rows<D>(count * (tile + 1) / tiles - i, [&]<int M>() {
        if (tiles == 1 && t.w.k <= kShortInt8Row)
          return RunInt8Tiles<D, M, D::CachedCols(M), 0>(t, x, first + i, outputs);
        if (tiles == 1)
          return RunInt8Tiles<D, M, D::Cols(M), D::PrefetchDistance(M)>(t, x, first + i, outputs);
        RunInt8Tiles<D, M, D::CachedCols(M), kPrefetchInTurns>(t, x, first + i, outputs,
                                                               {ahead, tile, tiles});
      });
    }
  }
}

template <class D>
void LinearInt8(const LinearTask& t) {
  const int64_t batches = (t.m + D::kMaxRows - 1) / D::kMaxRows;
  for (int64_t b = 0; b < batches; ++b) {
    const int64_t first = t.m * b / batches, count = t.m * (b + 1) / batches - first;
    LinearTask batch = t;
    if (b + 1 < batches) batch.next = Int8WeightRow<D>(t.w, t.begin);
    MultiplyInt8<D>(batch, D::Rows(t, first, count), first, count);
  }
}

}  // namespace switchyard::kernels::cpu::simd
