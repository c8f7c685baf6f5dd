// Products of many int8 rows with stored panels (stored_panels.h). A tile multiplies rows of x with
// several panels, so that each load of four codes of x serves several products. The tiles of a
// batch of rows share a part of the panels' columns, which stays in L1. Sums pass through memory
// from part to part. An output has the same additions as in FourBitTile, in the same order.
//
// D is FourBitOps of an instruction set and also defines:
//   kWidePanels, kWideRows, kWideLeastRows: panels of a tile, and its most and fewest rows of x.
//     Any number of rows from kWideMinRows on can be divided into such tiles. 0 panels: no such
//     tiles
//   Four(x): the four codes at x, in all lanes
//   AddFour(sum, weights, four): adds products of unsigned weights and codes
#pragma once

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/simd/four_bit.h"

namespace switchyard::kernels::cpu::simd {

// Adjacent panels, whose numbers were converted, and their sums.
template <class D>
struct WidePanels {
  const LinearTask& t;
  FourBitPanel<D> panel;                   // the first one
  int64_t code_distance, number_distance;  // between panels: bytes, numbers
  float* totals;                           // [rows of a batch][panels][kLanes]
  const float* bias;                       // [panels][kLanes], or null
  int64_t n;                               // first output
  int64_t chunks;
};

// Stores the outputs of a row of x.
template <class D, int P>
[[gnu::always_inline]] inline void StoreWide(const WidePanels<D>& o, int64_t i,
                                             const typename D::Vec::F (&totals)[P]) {
  using V = typename D::Vec;
  float* y = o.t.y + i * o.t.ldy + o.n;
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p, y += D::kLanes) {
    auto value = totals[p];
    if (o.bias != nullptr) value = V::Add(value, V::Load(o.bias + p * D::kLanes));
    if (o.t.accumulate) value = V::Add(V::Load(y), value);
    V::Store(y, value);
  }
}

// Multiplies columns of chunks [begin, end) of rows [i, i + M) of x with P panels. `totals`: sums
// of the rows, which are cleared before the first chunk. Stores outputs after the last one.
template <class Codes, int kBlocks, int M, int P, class D = typename Codes::Device>
[[gnu::noinline]] void WideTile(const WidePanels<D>& o, int64_t i, int64_t begin, int64_t end,
                                float* totals, const FourBitAhead<D>& ahead) {
  using V = typename D::Vec;
  using I = typename D::I;
  constexpr int kVectors = kFourBitVectors / kBlocks;
  constexpr int kStep = kVectors < 4 ? kVectors : 4;
  constexpr int64_t kCodesPerVector = 4;
  constexpr bool kStarts = !Codes::kMinima && (!Codes::kBytes || D::kByteStarts);
  const Int8BlockSource& rows = o.t.blocks;
  const char* x[M];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r)
    x[r] = rows.base + (rows.ids != nullptr ? rows.ids[i + r] : i + r) * rows.ld;
  const int64_t scales_at = o.chunks * kFourBitChunk, starts_at = scales_at + o.chunks * 4;
  const I table = Codes::Numbers();
  const int64_t step = D::Step(o.panel.step);
  const int64_t code_distance = o.code_distance, number_distance = o.number_distance;
  const char* chunk = o.panel.codes + begin * o.panel.stride;
  int64_t number = begin * kBlocks * D::kLanes;
  for (int64_t c = begin; c < end; ++c, chunk += o.panel.stride) {
    ahead.Prefetch(c);
    typename V::F inner[M][P];
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) inner[r][p] = V::Zero();
    }
    int64_t vector = 0, at = c * kFourBitChunk;
    int64_t start_at = starts_at + c * kBlocks * 4;
    for (int b = 0; b < kBlocks; ++b, start_at += 4, number += D::kLanes) {
      I sums[M][P];
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) {
        const I start = D::Set1(kStarts ? LoadNumber<D, int32_t>(x[r] + start_at) : 0);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sums[r][p] = start;
      }
      for (int v = 0; v < kVectors; v += kStep, vector += kStep) {
#pragma GCC unroll 4
        for (int s = 0; s < kStep; ++s, at += kCodesPerVector) {
          I low[P], high[P];
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
            I argument = table;
            if constexpr (Codes::kZeros)
              argument = D::Load(o.panel.zeros + p * number_distance + number);
            Codes::Operands(chunk + p * code_distance, vector + s, s, step, argument, low[p],
                            high[p]);
          }
#pragma GCC unroll 8
          for (int r = 0; r < M; ++r) {
            const I even = D::Four(x[r] + at);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) D::AddFour(sums[r][p], low[p], even);
            const I odd = D::Four(x[r] + at + kFourBitChunk / 2);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) D::AddFour(sums[r][p], high[p], odd);
          }
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const auto scale = V::Load(o.panel.scales + p * number_distance + number);
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r)
          inner[r][p] = V::Fma(D::ToFloat(sums[r][p]), scale, inner[r][p]);
        if constexpr (Codes::kMinima) {
          const auto least = V::Load(o.panel.minima + p * number_distance + number);
#pragma GCC unroll 8
          for (int r = 0; r < M; ++r) {
            const auto start = V::Set1(LoadNumber<D, float>(x[r] + start_at));
            inner[r][p] = V::Fma(least, start, inner[r][p]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      const auto scale = V::Set1(LoadNumber<D, float>(x[r] + scales_at + c * 4));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        float* total = totals + (r * P + p) * D::kLanes;
        const auto before = c == 0 ? V::Zero() : V::Load(total);
        V::Store(total, V::Fma(inner[r][p], scale, before));
      }
    }
  }
  if (end < o.chunks) return;
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
    typename V::F all[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) all[p] = V::Load(totals + (r * P + p) * D::kLanes);
    StoreWide<D, P>(o, i + r, all);
  }
}

template <class Codes, int kBlocks, class D, int M>
void RunWideTile(const WidePanels<D>& o, int64_t i, int64_t m, int64_t begin, int64_t end,
                 float* totals, const FourBitAhead<D>& ahead) {
  constexpr int P = D::kWidePanels;
  if constexpr (M > D::kWideLeastRows) {
    if (m < M) return RunWideTile<Codes, kBlocks, D, M - 1>(o, i, m, begin, end, totals, ahead);
  }
  WideTile<Codes, kBlocks, M, P>(o, i, begin, end, totals, ahead);
}

// Multiplies all rows of o.t, which fit a batch, with the panels. `next`: the panels that are
// prefetched, of `bytes` bytes together.
template <class Codes, int kBlocks, class D = typename Codes::Device>
void MultiplyWide(const WidePanels<D>& o, const char* next, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const int64_t tiles = (o.t.m + D::kWideRows - 1) / D::kWideRows;
  const int64_t code_bytes = o.chunks * D::kWidePanels * Codes::kCodeBytes;
  const int64_t parts = (code_bytes + kWidePartBytes - 1) / kWidePartBytes;
  const int64_t lines = (bytes + o.chunks * kLine - 1) / (o.chunks * kLine);
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = o.chunks * part / parts, end = o.chunks * (part + 1) / parts;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = o.t.m * tile / tiles;
      const FourBitAhead<D> ahead = {nullptr, lines * tile / tiles, lines * (tile + 1) / tiles,
                                     next, lines * kLine};
      RunWideTile<Codes, kBlocks, D, D::kWideRows>(o, i, o.t.m * (tile + 1) / tiles - i, begin, end,
                                                   o.totals + i * D::kWidePanels * D::kLanes,
                                                   ahead);
    }
  }
}

}  // namespace switchyard::kernels::cpu::simd
