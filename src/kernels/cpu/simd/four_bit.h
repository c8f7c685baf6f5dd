// Products of 4-bit weights and int8 rows with dot products of bytes, for any number of rows. A few
// weight rows at a time are transposed into a panel in L1 (four_bit_panel.h), which all rows of x
// are multiplied with. Nibbles are unpacked in registers, once per tile of rows of x. Sums of
// blocks are exact integers, and cpu/int8_blocks.h defines the order of float additions, so every
// instruction set gives the same bits.
//
// D, one per instruction set, defines:
//   Vec                          its vector type (avx512/vec.h, avx2/vec.h)
//   I                            vector of bytes and of int32 sums
//   kLanes, kRows, Chains(m)     outputs of a panel; rows of x of a tile; independent sums of each
//   of
//                                m rows of x, so that latency does not limit few rows
//   Load, Set1, Add              of int32 lanes
//   Table, Lookup                a table of sixteen bytes, and its bytes at the given nibbles
//   AddBytes                     sums of bytes
//   LowNibbles, HighNibbles      of each byte
//   AddProducts(a, b, low, high, x)  adds to each lane the products of low with the four codes at
//   x,
//                                and of high with the four codes after them, to a and b
//   ToFloat
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/four_bit_panel.h"

namespace switchyard::kernels::cpu::simd {

// Unsigned operands of nibbles: weight + FourBitOffset. `numbers`: Numbers(), or the zero points.
template <class D>
struct Int4Codes {
  using Device = D;
  static constexpr bool kZeros = false;
  static typename D::I Numbers() { return D::Set1(0); }
  static typename D::I Decode(typename D::I nibbles, typename D::I) { return nibbles; }
};
template <class D>
struct Int4ZeroCodes {
  using Device = D;
  static constexpr bool kZeros = true;
  static typename D::I Numbers() { return D::Set1(0); }
  static typename D::I Decode(typename D::I nibbles, typename D::I zeros) {
    return D::AddBytes(nibbles, zeros);
  }
};
template <class D>
struct E2M1Codes {
  using Device = D;
  static constexpr bool kZeros = false;
  static typename D::I Numbers() {  // twice the value, plus 12
    return D::Table(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  }
  static typename D::I Decode(typename D::I nibbles, typename D::I table) {
    return D::Lookup(table, nibbles);
  }
};

template <class D, class T>
[[gnu::always_inline]] inline T LoadNumber(const char* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

// A packed panel of outputs [n, n + count) of a task.
template <class D>
struct FourBitOutputs {
  const LinearTask& t;
  FourBitPanel<D> panel;
  const float* bias;  // [kLanes], or null
  int64_t n, count, chunks;
};

template <class D>
[[gnu::always_inline]] inline void StoreFourBit(const FourBitOutputs<D>& o, int64_t i,
                                                typename D::Vec::F value) {
  using V = typename D::Vec;
  float* y = o.t.y + i * o.t.ldy + o.n;
  if (o.bias != nullptr) value = V::Add(value, V::Load(o.bias));
  if (o.t.accumulate) value = V::Add(V::LoadN(y, o.count), value);
  V::StoreN(y, value, o.count);
}

// Rows [i, i + M) of x with a panel. Prefetches `lines` lines of `next` per chunk.
template <class Codes, int kBlocks, int M, class D = typename Codes::Device>
[[gnu::noinline]] void FourBitTile(const FourBitOutputs<D>& o, int64_t i, FourBitPrefetch<D>& next,
                                   int64_t lines) {
  using V = typename D::Vec;
  using I = typename D::I;
  constexpr int kChains = D::Chains(M);
  constexpr int kVectors = kFourBitVectors / kBlocks;  // of a block
  constexpr int kStep = kVectors < 4 ? kVectors : 4;
  constexpr int64_t kPair = 8;  // codes of x for a vector of weights
  const Int8BlockSource& rows = o.t.blocks;
  const char* x[M];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r)
    x[r] = rows.base + (rows.ids != nullptr ? rows.ids[i + r] : i + r) * rows.ld;
  const int64_t scales_at = o.chunks * kFourBitChunk, starts_at = scales_at + o.chunks * 4;
  const I table = Codes::Numbers();
  typename V::F total[M];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) total[r] = V::Zero();
  const char* w = o.panel.codes;
  int64_t at = 0;  // code of x
  for (int64_t c = 0; c < o.chunks; ++c) {
    next.Touch(lines);
    typename V::F inner[M];
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) inner[r] = V::Zero();
    for (int64_t b = c * kBlocks; b < (c + 1) * kBlocks; ++b) {
      I sums[M][kChains];
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) {
        sums[r][0] = D::Set1(LoadNumber<D, int32_t>(x[r] + starts_at + b * 4));
#pragma GCC unroll 4
        for (int s = 1; s < kChains; ++s) sums[r][s] = D::Set1(0);
      }
      I numbers = table;
      if constexpr (Codes::kZeros) numbers = D::Load(o.panel.zeros + b * D::kLanes);
      for (int v = 0; v < kVectors; v += kStep) {
#pragma GCC unroll 4
        for (int s = 0; s < kStep; ++s, w += FourBitPanel<D>::kVector, at += kPair) {
          const I bytes = D::Load(w);
          const I low = Codes::Decode(D::LowNibbles(bytes), numbers);
          const I high = Codes::Decode(D::HighNibbles(bytes), numbers);
#pragma GCC unroll 8
          for (int r = 0; r < M; ++r) {
            D::AddProducts(sums[r][2 * s % kChains], sums[r][(2 * s + 1) % kChains], low, high,
                           x[r] + at);
          }
        }
      }
      const auto scale = V::Load(o.panel.scales + b * D::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) {
        I sum = sums[r][0];
#pragma GCC unroll 4
        for (int s = 1; s < kChains; ++s) sum = D::Add(sum, sums[r][s]);
        inner[r] = V::Fma(D::ToFloat(sum), scale, inner[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      const auto scale = V::Set1(LoadNumber<D, float>(x[r] + scales_at + c * 4));
      total[r] = V::Fma(inner[r], scale, total[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) StoreFourBit<D>(o, i + r, total[r]);
}

template <class Codes, int kBlocks, class D = typename Codes::Device, int M = D::kRows>
void RunFourBitTile(const FourBitOutputs<D>& o, int64_t i, int64_t m, FourBitPrefetch<D>& next,
                    int64_t lines) {
  if constexpr (M > 1) {
    if (m < M) return RunFourBitTile<Codes, kBlocks, D, M - 1>(o, i, m, next, lines);
  }
  FourBitTile<Codes, kBlocks, M>(o, i, next, lines);
}

template <class Codes, int kBlocks>
void MultiplyFourBit(const LinearTask& t) {
  using D = typename Codes::Device;
  const int64_t chunks = (t.w.k + kFourBitChunk - 1) / kFourBitChunk;
  const int64_t tiles = (t.m + D::kRows - 1) / D::kRows;
  if (tiles == 0) return;
  const FourBitPanel<D> panel(reinterpret_cast<char*>(t.scratch), chunks, chunks * kBlocks);
  alignas(64) float bias[D::kLanes] = {};
  for (int64_t n = t.begin; n < t.end; n += D::kLanes) {
    const int64_t count = t.end - n < D::kLanes ? t.end - n : D::kLanes;
    if (t.bias != nullptr) __builtin_memcpy(bias, t.bias + n, count * sizeof(float));
    // The next panel's lines are prefetched while this one is packed and multiplied: half and half.
    constexpr int64_t kLines = D::kLanes;  // of a chunk of a panel
    FourBitPrefetch<D> next = PrefetchOfPanel<D>(t, n + D::kLanes);
    PackFourBitPanel<D, Codes::kZeros, kBlocks>(t, n, count, chunks, panel, next, kLines / 2);
    const int64_t lines = (kLines / 2 + tiles - 1) / tiles;
    const FourBitOutputs<D> o = {t, panel, t.bias != nullptr ? bias : nullptr, n, count, chunks};
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = t.m * tile / tiles;
      RunFourBitTile<Codes, kBlocks>(o, i, t.m * (tile + 1) / tiles - i, next, lines);
    }
  }
}

template <class Codes>
void MultiplyInt4(const LinearTask& t) {
  switch (t.blocks.block) {
    case 32:
      return MultiplyFourBit<Codes, 4>(t);
    case 64:
      return MultiplyFourBit<Codes, 2>(t);
    default:
      return MultiplyFourBit<Codes, 1>(t);
  }
}

template <class D>
void LinearFourBit(const LinearTask& t) {
  switch (t.w.format) {
    case WeightFormat::kMxfp4:
      return MultiplyFourBit<E2M1Codes<D>, kFourBitChunk / kMxfp4BlockSize>(t);
    case WeightFormat::kNvfp4:
      return MultiplyFourBit<E2M1Codes<D>, kFourBitChunk / kNvfp4BlockSize>(t);
    default:
      return t.w.zeros != nullptr ? MultiplyInt4<Int4ZeroCodes<D>>(t)
                                  : MultiplyInt4<Int4Codes<D>>(t);
  }
}

}  // namespace switchyard::kernels::cpu::simd
