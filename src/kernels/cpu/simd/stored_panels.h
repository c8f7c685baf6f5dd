// Products of int8 rows with weights that are stored as panels (quant/panels.h). The tiles of
// four_bit.h read codes in place. Scales of a panel are converted to float32 once per task, or
// within the product if there are few rows of x.
// D also defines kDirectPanelRows, the most rows of x for which scales are converted within the
// product.
#pragma once

#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/simd/four_bit.h"
#include "kernels/cpu/simd/wide_panels.h"

namespace switchyard::kernels::cpu::simd {

constexpr int64_t kStoredRows = 16;  // rows of a panel

// Byte offsets in the scales of one part of a panel, for ggml's K types: float16 d, float16 dmin,
// and the 6-bit minima (quant/panels.h). kNonLinearScaleAt: float16 d of IQ4_XS.
constexpr int64_t kSuperScaleAt = 128, kSuperMinimumAt = 160, kMinimaAt = 64;
constexpr int64_t kNonLinearScaleAt = 64;

// Scales of a part of a panel, one class per layout (quant/panels.h):
//   Begin(part): before the scales of the part at `part` are read
//   Scale(part, at, lane): the scales of kLanes outputs from `lane` on. at: the number of scales
//     before them in the part
template <class D, bool half>
struct WordScales {
  explicit WordScales(const LinearTask&) {}
  void Begin(const char*) {}
  [[gnu::always_inline]] auto Scale(const char* part, int64_t at, int64_t) const {
    return half ? D::Vec::F16(part + at * 2) : D::Vec::BF16(part + at * 2);
  }
};

template <class D>
struct E8M0Scales {
  bool normal = false;  // whether no scale of the part is subnormal or NaN

  explicit E8M0Scales(const LinearTask&) {}
  [[gnu::always_inline]] void Begin(const char* part) { normal = D::BytesWithin(part, 2, 254); }
  [[gnu::always_inline]] auto Scale(const char* part, int64_t at, int64_t) const {
    const auto codes = D::Widen(part + at);
    return normal ? D::HalvedNormalE8M0(codes) : D::HalvedE8M0(codes);
  }
};

template <class D>
struct E4M3Scales {
  using V = typename D::Vec;
  typename V::F factor;

  // As in PackFourBitScales: E4M3Over256 divides by 256, and operands are doubled values.
  explicit E4M3Scales(const LinearTask& t) : factor(V::Set1(t.w.global_scale * 128.0f)) {}
  void Begin(const char*) {}
  [[gnu::always_inline]] auto Scale(const char* part, int64_t at, int64_t) const {
    return V::Mul(V::E4M3Over256(part + at), factor);
  }
};

// A byte times the float16 number of the part's output, which is at byte `d_at`.
template <class D, bool is_signed, int64_t d_at>
struct SuperScales {
  using V = typename D::Vec;

  explicit SuperScales(const LinearTask&) {}
  void Begin(const char*) {}
  [[gnu::always_inline]] auto Scale(const char* part, int64_t at, int64_t lane) const {
    const auto bytes = is_signed ? D::WidenSigned(part + at) : D::Widen(part + at);
    return V::Mul(V::F16(part + d_at + lane * 2), D::ToFloat(bytes));
  }
};

// The numbers of outputs [lane, lane + kLanes) of a panel, converted to float32 where they are
// used.
template <class Codes, int kBlocks, class Scales, class D = typename Codes::Device>
struct StoredNumbers {
  const char* next;      // scales of the next part
  int64_t stride, lane;  // bytes between parts
  int64_t left;          // blocks from the next part on
  Scales scales;
  const char* part = nullptr;
  int64_t count = 0;  // blocks of this part

  StoredNumbers(const LinearTask& t, const char* first, int64_t first_lane)
      : next(first),
        stride(t.w.part_scales),
        lane(first_lane),
        left((t.w.k + t.blocks.block - 1) / t.blocks.block),
        scales(t) {}

  [[gnu::always_inline]] void Begin(int64_t) {
    part = next;
    count = left;
    scales.Begin(part);
    next += stride;
    left -= kBlocks;
  }
  [[gnu::always_inline]] bool Has(int b) const { return b < count; }
  [[gnu::always_inline]] auto Scale(int b) const { return scales.Scale(part, At(b), lane); }
  [[gnu::always_inline]] auto Minimum(int b) const {
    const auto d = D::Vec::F16(part + kSuperMinimumAt + lane * 2);
    return D::Vec::Mul(d, D::ToFloat(D::Widen(part + kMinimaAt + At(b))));
  }
  [[gnu::always_inline]] auto Zeros(int b) const {
    constexpr int64_t kScaleBytes = kBlocks * kStoredRows * 2;
    return D::ZeroOperands(D::Widen(part + kScaleBytes + At(b)));
  }

 private:
  [[gnu::always_inline]] int64_t At(int b) const { return b * kStoredRows + lane; }
};

// Converts the numbers of a panel to float32, for tiles of many rows.
template <class Codes, int kBlocks, class Numbers, class D = typename Codes::Device>
void UnpackNumbers(Numbers numbers, int64_t chunks, const FourBitPanel<D>& panel,
                   const FourBitAhead<D>& ahead) {
  using V = typename D::Vec;
  for (int64_t c = 0, at = 0; c < chunks; ++c) {
    ahead.Prefetch(c);
    numbers.Begin(c);
    for (int b = 0; b < kBlocks; ++b, at += D::kLanes) {
      // Absent blocks get zero scales, so their codes have no effect.
      const bool has = numbers.Has(b);
      V::Store(panel.scales + at, has ? numbers.Scale(b) : V::Zero());
      if constexpr (Codes::kMinima)
        V::Store(panel.minima + at, has ? numbers.Minimum(b) : V::Zero());
      if constexpr (Codes::kZeros) D::Store(panel.zeros + at, has ? numbers.Zeros(b) : D::Set1(0));
    }
  }
}

// The panels of a task.
template <class Codes, int kBlocks, class Scales, class D = typename Codes::Device>
class PanelProduct {
 public:
  explicit PanelProduct(const LinearTask& t)
      : t_(t),
        chunks_(ChunksOf(t.w.k)),
        parts_(ChunksOf(t.w.stored_k)),
        bytes_(t.w.panel_scales + parts_ * Codes::kCodeBytes),
        skipped_(t.w.col0 / kFourBitChunk),
        first_(static_cast<const char*>(t.w.data) + t.w.row0 / kStoredRows * bytes_) {}

  void Run() const {
    int64_t n = t_.begin;
    if constexpr (D::kWidePanels > 0) {
      constexpr int64_t kWide = D::kWidePanels * D::kLanes;
      const int64_t wide = t_.m >= kWideMinRows ? (t_.end - n) / kWide * kWide : 0;
      const int64_t batches = (t_.m + kWideBatch - 1) / kWideBatch;
      for (int64_t batch = 0; wide > 0 && batch < batches; ++batch) {
        const int64_t i = t_.m * batch / batches;
        const LinearTask rows = Rows(i, t_.m * (batch + 1) / batches - i);
        for (int64_t at = n; at < n + wide; at += kWide) MultiplyWidePanels(rows, at);
      }
      n += wide;
    }
    for (; n < t_.end; n += D::kLanes) MultiplyPanel(n);
  }

 private:
  using Numbers = StoredNumbers<Codes, kBlocks, Scales>;
  static constexpr int64_t kLine = 64;

  static int64_t ChunksOf(int64_t columns) { return (columns + kFourBitChunk - 1) / kFourBitChunk; }

  // The task for rows [i, i + m) of x.
  LinearTask Rows(int64_t i, int64_t m) const {
    LinearTask rows = t_;
    rows.m = m;
    rows.y += i * t_.ldy;
    if (rows.blocks.ids != nullptr) {
      rows.blocks.ids += i;
    } else {
      rows.blocks.base += i * rows.blocks.ld;
    }
    return rows;
  }
  const char* PanelOf(int64_t n) const { return first_ + n / kStoredRows * bytes_; }
  const char* CodesOf(int64_t n) const {
    return PanelOf(n) + t_.w.panel_scales + skipped_ * Codes::kCodeBytes + n % kStoredRows * 4;
  }
  Numbers NumbersOf(int64_t n) const {
    return Numbers(t_, PanelOf(n) + skipped_ * t_.w.part_scales, n % kStoredRows);
  }
  // Memory for the converted numbers of several panels.
  FourBitPanel<D> Memory(int64_t panels) const {
    FourBitPanel<D> panel(reinterpret_cast<char*>(t_.scratch), chunks_, panels * chunks_ * kBlocks);
    panel.step = kStoredRows * 4;
    panel.stride = Codes::kCodeBytes;
    return panel;
  }
  // The panel to prefetch while output n - 1 is computed.
  const char* NextPanel(int64_t n) const {
    if (n < t_.end) return PanelOf(n);
    return t_.next != nullptr ? static_cast<const char*>(t_.next) : PanelOf(n - 1);
  }
  const float* Bias(int64_t n, int64_t count, float* memory) const {
    if (t_.bias == nullptr) return nullptr;
    __builtin_memcpy(memory, t_.bias + n, count * sizeof(float));
    return memory;
  }

  void MultiplyPanel(int64_t n) const {
    constexpr int64_t kParts = kStoredRows / D::kLanes;
    const int64_t tiles = (t_.m + D::kRows - 1) / D::kRows;
    const int64_t lane = n % kStoredRows;
    const int64_t count = t_.end - n < D::kLanes ? t_.end - n : D::kLanes;
    alignas(64) float bias[D::kLanes] = {};
    FourBitPanel<D> panel = Memory(1);
    panel.codes = CodesOf(n);
    const FourBitOutputs<D> o = {t_, panel, Bias(n, count, bias), n, count, chunks_};
    const int64_t lines = (bytes_ + parts_ * kLine - 1) / (parts_ * kLine);
    // Every pass over this panel prefetches an equal share of the next panel. Passes: conversion of
    // numbers, and the tiles of x.
    const char* next = NextPanel(n - lane + kStoredRows);
    const bool direct = t_.m <= D::kDirectPanelRows;
    const int64_t each = direct ? 1 : 1 + tiles, passes = kParts * each;
    int64_t pass = lane / D::kLanes * each;
    const auto ahead = [&]() -> FourBitAhead<D> {
      const int64_t begin = lines * pass / passes;
      return {nullptr, begin, lines * ++pass / passes, next, lines * kLine};
    };
    if (direct) {
      // If one pass reads the whole panel, memory is one stream, which is prefetched at a constant
      // distance.
      const char* const from = CodesOf(n) + kStreamPrefetchBytes;
      const FourBitAhead<D> stream = {nullptr, 0, lines, from, lines * kLine};
      return RunDirectPanel<D::kDirectPanelRows>(o, kParts == 1 ? stream : ahead(), NumbersOf(n));
    }
    UnpackNumbers<Codes, kBlocks>(NumbersOf(n), chunks_, panel, ahead());
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t i = t_.m * tile / tiles;
      RunFourBitTile<Codes, kBlocks>(o, i, t_.m * (tile + 1) / tiles - i, ahead());
    }
  }

  // Multiplies at most M rows of x, and converts numbers within the product.
  template <int M>
  void RunDirectPanel(const FourBitOutputs<D>& o, const FourBitAhead<D>& ahead,
                      const Numbers& numbers) const {
    if constexpr (M > 1) {
      if (t_.m < M) return RunDirectPanel<M - 1>(o, ahead, numbers);
    }
    FourBitTile<Codes, kBlocks, M>(o, 0, ahead, numbers);
  }

  // Multiplies all rows of `rows` with the panels of outputs [n, n + kWidePanels · kLanes).
  void MultiplyWidePanels(const LinearTask& rows, int64_t n) const {
    constexpr int64_t kPanels = D::kWidePanels, kCount = kPanels * D::kLanes;
    static_assert(D::kLanes == kStoredRows);
    alignas(64) float bias[kCount] = {};
    FourBitPanel<D> panel = Memory(kPanels);
    panel.codes = CodesOf(n);
    const int64_t numbers = chunks_ * kBlocks * D::kLanes;  // of a panel
    for (int64_t p = 0; p < kPanels; ++p) {
      FourBitPanel<D> one = panel;
      one.scales += p * numbers;
      one.zeros += p * numbers;
      one.minima += p * numbers;
      UnpackNumbers<Codes, kBlocks>(NumbersOf(n + p * kStoredRows), chunks_, one,
                                    FourBitAhead<D>{nullptr, 0, 0, nullptr, 0});
    }
    float* totals = panel.minima + kPanels * numbers;
    const WidePanels<D> o = {rows, panel,  bytes_, numbers, totals, Bias(n, kCount, bias),
                             n,    chunks_};
    MultiplyWide<Codes, kBlocks>(o, NextPanel(n + kCount), kPanels * bytes_);
  }

  const LinearTask& t_;
  const int64_t chunks_, parts_;  // chunks of the product, and of the stored rows
  const int64_t bytes_;           // of a panel
  const int64_t skipped_;         // chunks before the first column
  const char* const first_;
};

template <class Codes, int kBlocks, class Scales>
void MultiplyPanels(const LinearTask& t) {
  if (t.m > 0) PanelProduct<Codes, kBlocks, Scales>(t).Run();
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
template <class Codes, bool half>
void MultiplyInt4Panels(const LinearTask& t) {
  using Scales = WordScales<typename Codes::Device, half>;
  ForInt4Blocks(t, [&]<int kBlocks>() { MultiplyPanels<Codes, kBlocks, Scales>(t); });
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
      return MultiplyInt4Panels<Int4Codes<D>, false>(t);
    case WeightFormat::kInt4HalfPanels:
      return MultiplyInt4Panels<Int4Codes<D>, true>(t);
    case WeightFormat::kInt4ZeroPanels:
      return MultiplyInt4Panels<Int4ZeroCodes<D>, false>(t);
    case WeightFormat::kInt4HalfZeroPanels:
      return MultiplyInt4Panels<Int4ZeroCodes<D>, true>(t);
    case WeightFormat::kMxfp4Panels:
      return MultiplyPanels<E2M1Codes<D>, kMxfp4, E8M0Scales<D>>(t);
    case WeightFormat::kNvfp4Panels:
      return MultiplyPanels<E2M1Codes<D>, kNvfp4, E4M3Scales<D>>(t);
    case WeightFormat::kIQ4XSPanels:
      return MultiplyPanels<IQ4Codes<D>, 4, SuperScales<D, true, kNonLinearScaleAt>>(t);
    case WeightFormat::kQ4_0Panels:
      return MultiplyPanels<Int4Codes<D>, 4, WordScales<D, true>>(t);
    case WeightFormat::kQ8_0Panels:
      return MultiplyPanels<ByteCodes<D>, 4, WordScales<D, true>>(t);
    case WeightFormat::kQ4KPanels:
      return MultiplyPanels<Q4KCodes<D>, 4, SuperScales<D, false, kSuperScaleAt>>(t);
    case WeightFormat::kQ5KPanels:
      return MultiplyPanels<Q5KCodes<D>, 4, SuperScales<D, false, kSuperScaleAt>>(t);
    case WeightFormat::kQ6KPanels:
      return MultiplyPanels<Q6KCodes<D>, 8, SuperScales<D, true, kSuperScaleAt>>(t);
    default:
      return t.w.zeros != nullptr ? MultiplyInt4<Int4ZeroCodes<D>>(t)
                                  : MultiplyInt4<Int4Codes<D>>(t);
  }
}

}  // namespace switchyard::kernels::cpu::simd
