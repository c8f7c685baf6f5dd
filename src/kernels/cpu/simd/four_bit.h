// Products of 4-bit weights and int8 rows with dot products of bytes, for any number of rows. A few
// weight rows at a time are transposed into a panel in L1 (four_bit_panel.h), which all rows of x
// are multiplied with. Nibbles are unpacked in registers, once per tile of rows of x. Sums of
// blocks are exact integers, and cpu/int8_blocks.h defines the order of float additions, so every
// instruction set gives the same bits.
//
// D is FourBitOps of an instruction set (four_bit_ops.h) and also defines:
//   DirectRows(kBlocks): up to this many rows of x are multiplied without a panel of codes, by
//     DirectTile<Codes, kBlocks, M>(outputs, rows, ahead), which does what FourBitTile does
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/four_bit_codes.h"
#include "kernels/cpu/simd/four_bit_panel.h"

namespace switchyard::kernels::cpu::simd {

template <class D, class T>
[[gnu::always_inline]] inline T LoadNumber(const char* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

// Outputs [n, n + count) of a task, with their packed panel.
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

// The sum of all chains. Even chains are sums of low nibbles, odd ones of high nibbles, which are
// 16 times as large if `high_in_place`.
template <class D, int kChains, bool high_in_place>
[[gnu::always_inline]] inline typename D::I TotalOfChains(const typename D::I (&sums)[kChains]) {
  using I = typename D::I;
  if constexpr (high_in_place) {
    I low = sums[0], high = sums[1];
    if constexpr (kChains == 4) {
      low = D::Add(low, sums[2]);
      high = D::Add(high, sums[3]);
    }
    return D::Add(low, D::template ShiftRightSigned<4>(high));
  } else {
    I sum = sums[0];
#pragma GCC unroll 4
    for (int s = 1; s < kChains; ++s) sum = D::Add(sum, sums[s]);
    return sum;
  }
}

// The scales, minima and zero points of a panel that were converted before its tiles run.
template <class D, int kBlocks>
struct ConvertedNumbers {
  const FourBitPanel<D>& panel;
  int64_t first = 0;  // position of the chunk's numbers

  [[gnu::always_inline]] void Begin(int64_t chunk) { first = chunk * kBlocks * D::kLanes; }
  // Whether the chunk has block b. Absent blocks have scales of 0 here.
  [[gnu::always_inline]] bool Has(int) const { return true; }
  [[gnu::always_inline]] auto Scale(int b) const {
    return D::Vec::Load(panel.scales + first + b * D::kLanes);
  }
  [[gnu::always_inline]] auto Minimum(int b) const {
    return D::Vec::Load(panel.minima + first + b * D::kLanes);
  }
  [[gnu::always_inline]] auto Zeros(int b) const {
    return D::Load(panel.zeros + first + b * D::kLanes);
  }
};

// Multiplies rows [i, i + M) of x with a panel. `first`: ConvertedNumbers, or a class with the
// same functions.
template <class Codes, int kBlocks, int M, class Numbers, class D = typename Codes::Device>
[[gnu::noinline]] void FourBitTile(const FourBitOutputs<D>& o, int64_t i,
                                   const FourBitAhead<D>& ahead, const Numbers& first) {
  using V = typename D::Vec;
  using I = typename D::I;
  constexpr int kChains = D::Chains(M);
  // Sums of low and of high nibbles are separate, so high nibbles need no shift: their sums do.
  constexpr bool kHighInPlace = Codes::kPlain && kChains > 1;
  constexpr int kVectors = kFourBitVectors / kBlocks;  // vectors of a block
  constexpr int kStep = kVectors < 4 ? kVectors : 4;
  constexpr int64_t kCodesPerVector = 4;  // a vector of weights needs 4 even and 4 odd codes of x
  const Int8BlockSource& rows = o.t.blocks;
  const char* x[M];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r)
    x[r] = rows.base + (rows.ids != nullptr ? rows.ids[i + r] : i + r) * rows.ld;
  const int64_t scales_at = o.chunks * kFourBitChunk, starts_at = scales_at + o.chunks * 4;
  const I table = Codes::Numbers();
  Numbers numbers = first;  // a copy, which can stay in registers
  typename V::F total[M];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) total[r] = V::Zero();
  const int64_t step = D::Step(o.panel.step);
  const char* chunk = o.panel.codes;
  for (int64_t c = 0; c < o.chunks; ++c, chunk += o.panel.stride) {
    ahead.Prefetch(c);
    numbers.Begin(c);
    typename V::F inner[M];
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) inner[r] = V::Zero();
    int64_t vector = 0, at = c * kFourBitChunk;  // at: offset of the next even codes of x
    int64_t start_at = starts_at + c * kBlocks * 4;
    for (int b = 0; b < kBlocks && numbers.Has(b); ++b, start_at += 4) {
      constexpr bool kStarts = !Codes::kMinima && (!Codes::kBytes || D::kByteStarts);
      I sums[M][kChains];
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) {
        sums[r][0] = D::Set1(kStarts ? LoadNumber<D, int32_t>(x[r] + start_at) : 0);
#pragma GCC unroll 4
        for (int s = 1; s < kChains; ++s) sums[r][s] = D::Set1(0);
      }
      I argument = table;
      if constexpr (Codes::kZeros) argument = numbers.Zeros(b);
      for (int v = 0; v < kVectors; v += kStep, vector += kStep) {
#pragma GCC unroll 4
        for (int s = 0; s < kStep; ++s, at += kCodesPerVector) {
          I low, high;
          if constexpr (kHighInPlace) {
            const I bytes = D::Load(chunk + (vector + s) * step);
            low = D::LowNibbles(bytes);
            high = D::HighNibblesInPlace(bytes);
          } else {
            Codes::Operands(chunk, vector + s, s, step, argument, low, high);
          }
#pragma GCC unroll 8
          for (int r = 0; r < M; ++r) {
            I &even = sums[r][2 * s % kChains], &odd = sums[r][(2 * s + 1) % kChains];
            if constexpr (Codes::kBytes) {
              D::AddByteProducts(even, odd, low, high, x[r] + at);
            } else {
              D::AddProducts(even, odd, low, high, x[r] + at);
            }
          }
        }
      }
      const auto scale = numbers.Scale(b);
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) {
        const I sum = TotalOfChains<D, kChains, kHighInPlace>(sums[r]);
        inner[r] = V::Fma(D::ToFloat(sum), scale, inner[r]);
      }
      if constexpr (Codes::kMinima) {
        const auto least = numbers.Minimum(b);
#pragma GCC unroll 8
        for (int r = 0; r < M; ++r) {
          const auto start = V::Set1(LoadNumber<D, float>(x[r] + start_at));
          inner[r] = V::Fma(least, start, inner[r]);
        }
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
void RunFourBitTile(const FourBitOutputs<D>& o, int64_t i, int64_t m,
                    const FourBitAhead<D>& ahead) {
  if constexpr (M > 1) {
    if (m < M) return RunFourBitTile<Codes, kBlocks, D, M - 1>(o, i, m, ahead);
  }
  FourBitTile<Codes, kBlocks, M>(o, i, ahead, ConvertedNumbers<D, kBlocks>{o.panel});
}

// Multiplies m rows of x, at most M, without a panel of codes.
template <class Codes, int kBlocks, class D, int M>
void RunDirectTile(const FourBitOutputs<D>& o, const FourBitRows<D::kLanes>& rows,
                   const FourBitAhead<D>& ahead) {
  if constexpr (M > 1) {
    if (o.t.m < M) return RunDirectTile<Codes, kBlocks, D, M - 1>(o, rows, ahead);
  }
  D::template DirectTile<Codes, kBlocks, M>(o, rows, ahead);
}

// Products with weights that are stored in rows.
template <class Codes, int kBlocks>
void MultiplyRows(const LinearTask& t) {
  using D = typename Codes::Device;
  constexpr int64_t kHalf = D::kLanes / 2;
  const int64_t chunks = (t.w.k + kFourBitChunk - 1) / kFourBitChunk;
  const int64_t tiles = (t.m + D::kRows - 1) / D::kRows;
  if (tiles == 0) return;
  const FourBitPanel<D> panel(reinterpret_cast<char*>(t.scratch), chunks, chunks * kBlocks);
  alignas(64) float bias[D::kLanes] = {};
  for (int64_t n = t.begin; n < t.end; n += D::kLanes) {
    const int64_t count = t.end - n < D::kLanes ? t.end - n : D::kLanes;
    if (t.bias != nullptr) __builtin_memcpy(bias, t.bias + n, count * sizeof(float));
    const FourBitOutputs<D> o = {t, panel, t.bias != nullptr ? bias : nullptr, n, count, chunks};
    const FourBitRows<D::kLanes> rows = CodeRows<D>(t, n, count);
    const FourBitRows<D::kLanes> ahead = RowsAhead<D>(t, n + D::kLanes, rows);
    PackFourBitNumbers<D, Codes::kZeros, kBlocks>(t, n, count, chunks, panel);
    constexpr int kDirectRows = Codes::kZeros ? 0 : D::DirectRows(kBlocks);
    if constexpr (kDirectRows > 0) {
      if (t.m <= kDirectRows) {
        RunDirectTile<Codes, kBlocks, D, kDirectRows>(o, rows, {&ahead, 0, D::kLanes, nullptr, 0});
        continue;
      }
    }
    PackFourBitCodes<D>(rows, (t.w.k + 1) / 2, panel.packed, ahead);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = t.m * tile / tiles;
      const FourBitAhead<D> part = {&ahead, kHalf + kHalf * tile / tiles,
                                    kHalf + kHalf * (tile + 1) / tiles, nullptr, 0};
      RunFourBitTile<Codes, kBlocks>(o, i, t.m * (tile + 1) / tiles - i, part);
    }
  }
}

}  // namespace switchyard::kernels::cpu::simd
