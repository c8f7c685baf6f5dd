// Products of int8 rows with weights that are stored as panels (quant/panels.h). The tiles of
// four_bit.h read codes in place; scales of a panel are converted to float32 once per task.
#pragma once

#include "kernels/cpu/simd/four_bit.h"

namespace switchyard::kernels::cpu::simd {

constexpr int64_t kStoredRows = 16;  // rows of a panel

// Byte offsets in the scales of one part of a panel, for ggml's K types: float16 d, float16 dmin,
// and the 6-bit minima (quant/panels.h). kNonLinearScaleAt: float16 d of IQ4_XS.
constexpr int64_t kSuperScaleAt = 128, kSuperMinimumAt = 160, kMinimaAt = 64;
constexpr int64_t kNonLinearScaleAt = 64;

// Fills `out` [chunks][blocks][lanes]. scale_of(part, b, to) writes the scales of block b of the
// part at `part`, one per output, to `to`.
template <class Codes, int kBlocks, class Out, class ScaleOf, class D = typename Codes::Device>
[[gnu::always_inline]] inline void FillNumbers(const LinearTask& t, const char* part, Out* out,
                                               const ScaleOf& scale_of) {
  const int64_t blocks = (t.w.k + t.blocks.block - 1) / t.blocks.block;
  for (int64_t j = 0; j < blocks; part += t.w.part_scales) {
    const int64_t left = blocks - j, count = left < kBlocks ? left : kBlocks;
    for (int64_t b = 0; b < count; ++b, out += D::kLanes) scale_of(part, b, out);
    j += kBlocks;
    // Blocks beyond the last column get zero scales, so their codes have no effect.
    for (int64_t b = count; b < kBlocks; ++b, out += D::kLanes) D::Store(out, D::Set1(0));
  }
}

// Converts the scales and minima of outputs [lane, lane + lanes) of a panel to float32. `part`: the
// scales of the panel's first part.
template <class Codes, int kBlocks, class D = typename Codes::Device>
void UnpackNumbers(const LinearTask& t, const char* part, int64_t lane,
                   const FourBitPanel<D>& panel, const FourBitAhead<D>& ahead) {
  using V = typename D::Vec;
  int64_t chunk = 0;
  const auto fill = [&](const auto& scale_of) __attribute__((always_inline)) {
    FillNumbers<Codes, kBlocks>(
        t, part, panel.scales,
        [&](const char* numbers, int64_t b, float* out) __attribute__((always_inline)) {
          if (b == 0) ahead.Prefetch(chunk++);
          scale_of(numbers, b, out);
        });
  };
  const auto element = [lane](int64_t b) { return b * kStoredRows + lane; };
  switch (t.w.format) {
    case WeightFormat::kQ4_0Panels:
    case WeightFormat::kQ8_0Panels:
    case WeightFormat::kInt4HalfPanels:
    case WeightFormat::kInt4HalfZeroPanels:
      fill([&](const char* numbers, int64_t b, float* out)
               __attribute__((always_inline)) { V::Store(out, V::F16(numbers + element(b) * 2)); });
      break;
    case WeightFormat::kMxfp4Panels:
      fill([&](const char* numbers, int64_t b, float* out) __attribute__((always_inline)) {
        V::Store(out, D::HalvedE8M0(D::Widen(numbers + element(b))));
      });
      break;
    case WeightFormat::kNvfp4Panels: {
      // As in PackFourBitScales: E4M3Over256 divides by 256, and operands are doubled values.
      const auto factor = V::Set1(t.w.global_scale * 128.0f);
      fill([&](const char* numbers, int64_t b, float* out) __attribute__((always_inline)) {
        V::Store(out, V::Mul(V::E4M3Over256(numbers + element(b)), factor));
      });
      break;
    }
    case WeightFormat::kIQ4XSPanels:
      fill([&](const char* numbers, int64_t b, float* out) __attribute__((always_inline)) {
        const auto d = V::F16(numbers + kNonLinearScaleAt + lane * 2);
        V::Store(out, V::Mul(d, D::ToFloat(D::WidenSigned(numbers + element(b)))));
      });
      break;
    case WeightFormat::kQ4KPanels:
    case WeightFormat::kQ5KPanels:
      fill([&](const char* numbers, int64_t b, float* out) __attribute__((always_inline)) {
        const auto d = V::F16(numbers + kSuperScaleAt + lane * 2);
        V::Store(out, V::Mul(d, D::ToFloat(D::Widen(numbers + element(b)))));
      });
      break;
    case WeightFormat::kQ6KPanels:
      fill([&](const char* numbers, int64_t b, float* out) __attribute__((always_inline)) {
        const auto d = V::F16(numbers + kSuperScaleAt + lane * 2);
        V::Store(out, V::Mul(d, D::ToFloat(D::WidenSigned(numbers + element(b)))));
      });
      break;
    default:  // int4
      fill([&](const char* numbers, int64_t b, float* out) __attribute__((always_inline)) {
        V::Store(out, V::BF16(numbers + element(b) * 2));
      });
      break;
  }
  if constexpr (Codes::kMinima) {
    const auto least = [&](const char* numbers, int64_t b, float* out)
        __attribute__((always_inline)) {
      const auto d = V::F16(numbers + kSuperMinimumAt + lane * 2);
      V::Store(out, V::Mul(d, D::ToFloat(D::Widen(numbers + kMinimaAt + element(b)))));
    };
    FillNumbers<Codes, kBlocks>(t, part, panel.minima, least);
  }
  if constexpr (Codes::kZeros) {
    const auto zeros = [&](const char* numbers, int64_t b, uint32_t* out)
        __attribute__((always_inline)) {
      constexpr int64_t kScales = kBlocks * kStoredRows * 2;
      D::Store(out, D::ZeroOperands(D::Widen(numbers + kScales + element(b))));
    };
    FillNumbers<Codes, kBlocks>(t, part, panel.zeros, zeros);
  }
}

template <class Codes, int kBlocks>
void MultiplyPanels(const LinearTask& t) {
  using D = typename Codes::Device;
  constexpr int64_t kLine = 64, kParts = kStoredRows / D::kLanes;
  const WeightRef& w = t.w;
  const int64_t chunks = (w.k + kFourBitChunk - 1) / kFourBitChunk;
  const int64_t tiles = (t.m + D::kRows - 1) / D::kRows;
  if (tiles == 0) return;
  const int64_t parts = (w.stored_k + kFourBitChunk - 1) / kFourBitChunk;
  const int64_t bytes = w.panel_scales + parts * Codes::kCodeBytes;  // of a whole panel
  const int64_t lines = (bytes + parts * kLine - 1) / (parts * kLine);
  const char* first = static_cast<const char*>(w.data) + w.row0 / kStoredRows * bytes;
  const int64_t skipped = w.col0 / kFourBitChunk;
  FourBitPanel<D> panel(reinterpret_cast<char*>(t.scratch), chunks, chunks * kBlocks);
  panel.step = kStoredRows * 4;
  panel.stride = Codes::kCodeBytes;
  alignas(64) float bias[D::kLanes] = {};
  for (int64_t n = t.begin; n < t.end; n += D::kLanes) {
    const char* stored = first + n / kStoredRows * bytes;
    const int64_t lane = n % kStoredRows;
    const int64_t count = t.end - n < D::kLanes ? t.end - n : D::kLanes;
    if (t.bias != nullptr) __builtin_memcpy(bias, t.bias + n, count * sizeof(float));
    panel.codes = stored + w.panel_scales + skipped * Codes::kCodeBytes + lane * 4;
    // Every pass over this panel prefetches an equal share of the next panel. Passes: conversion of
    // scales, and the tiles of x.
    const char* next = static_cast<const char*>(t.next);
    if (n - lane + kStoredRows < t.end) next = stored + bytes;
    if (next == nullptr) next = stored;
    const int64_t passes = kParts * (1 + tiles);
    int64_t pass = lane / D::kLanes * (1 + tiles);
    const auto ahead = [&]() -> FourBitAhead<D> {
      const int64_t begin = lines * pass / passes;
      return {nullptr, begin, lines * ++pass / passes, next, lines * kLine};
    };
    UnpackNumbers<Codes, kBlocks>(t, stored + skipped * w.part_scales, lane, panel, ahead());
    const FourBitOutputs<D> o = {t, panel, t.bias != nullptr ? bias : nullptr, n, count, chunks};
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = t.m * tile / tiles;
      RunFourBitTile<Codes, kBlocks>(o, i, t.m * (tile + 1) / tiles - i, ahead());
    }
  }
}

// Calls f.template operator()<blocks of a chunk>() for int4 weights.
template <class F>
void ForInt4Blocks(const LinearTask& t, const F& f) {
  switch (t.blocks.block) {
    case 32:
      return f.template operator()<4>();
    case 64:
      return f.template operator()<2>();
    default:
      return f.template operator()<1>();
  }
}

template <class Codes>
void MultiplyInt4(const LinearTask& t) {
  ForInt4Blocks(t, [&]<int kBlocks>() { MultiplyRows<Codes, kBlocks>(t); });
}
template <class Codes>
void MultiplyInt4Panels(const LinearTask& t) {
  ForInt4Blocks(t, [&]<int kBlocks>() { MultiplyPanels<Codes, kBlocks>(t); });
}

// Implements KernelTable::linear_four_bit for an instruction set.
template <class D>
void LinearFourBit(const LinearTask& t) {
  constexpr int kMxfp4 = kFourBitChunk / kMxfp4BlockSize, kNvfp4 = kFourBitChunk / kNvfp4BlockSize;
  switch (t.w.format) {
    case WeightFormat::kMxfp4:
      return MultiplyRows<E2M1Codes<D>, kMxfp4>(t);
    case WeightFormat::kNvfp4:
      return MultiplyRows<E2M1Codes<D>, kNvfp4>(t);
    case WeightFormat::kInt4Panels:
    case WeightFormat::kInt4HalfPanels:
      return MultiplyInt4Panels<Int4Codes<D>>(t);
    case WeightFormat::kInt4ZeroPanels:
    case WeightFormat::kInt4HalfZeroPanels:
      return MultiplyInt4Panels<Int4ZeroCodes<D>>(t);
    case WeightFormat::kMxfp4Panels:
      return MultiplyPanels<E2M1Codes<D>, kMxfp4>(t);
    case WeightFormat::kNvfp4Panels:
      return MultiplyPanels<E2M1Codes<D>, kNvfp4>(t);
    case WeightFormat::kIQ4XSPanels:
      return MultiplyPanels<IQ4Codes<D>, 4>(t);
    case WeightFormat::kQ4_0Panels:
      return MultiplyPanels<Int4Codes<D>, 4>(t);
    case WeightFormat::kQ8_0Panels:
      return MultiplyPanels<ByteCodes<D>, 4>(t);
    case WeightFormat::kQ4KPanels:
      return MultiplyPanels<Q4KCodes<D>, 4>(t);
    case WeightFormat::kQ5KPanels:
      return MultiplyPanels<Q5KCodes<D>, 4>(t);
    case WeightFormat::kQ6KPanels:
      return MultiplyPanels<Q6KCodes<D>, 8>(t);
    default:
      return t.w.zeros != nullptr ? MultiplyInt4<Int4ZeroCodes<D>>(t)
                                  : MultiplyInt4<Int4Codes<D>>(t);
  }
}

}  // namespace switchyard::kernels::cpu::simd
