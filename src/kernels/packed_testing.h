// Weights of 4-bit formats and of panels with random values, for tests of their products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/format.h"
#include "kernels/testing.h"
#include "quant/panels.h"

namespace switchyard::kernels {

// A weight format with its groups.
struct PackedKind {
  WeightFormat format;
  int32_t group = 128;
  bool symmetric = true;
};

constexpr PackedKind kPackedKinds[] = {
    {WeightFormat::kInt4Group, 32},
    {WeightFormat::kInt4Group, 32, false},
    {WeightFormat::kInt4Group, 64},
    {WeightFormat::kInt4Group, 64, false},
    {WeightFormat::kInt4Group, 128},
    {WeightFormat::kInt4Group, 128, false},
    {WeightFormat::kInt4Group, 256, false},
    {WeightFormat::kInt4Group, 4096, false},
    {WeightFormat::kInt4Group, 48},  // without an integer product
    {WeightFormat::kMxfp4},
    {WeightFormat::kNvfp4},
    {WeightFormat::kInt4Panels, 32},
    {WeightFormat::kInt4Panels, 64},
    {WeightFormat::kInt4Panels, 128},
    {WeightFormat::kInt4ZeroPanels, 32, false},
    {WeightFormat::kInt4ZeroPanels, 64, false},
    {WeightFormat::kInt4ZeroPanels, 128, false},
    {WeightFormat::kInt4HalfPanels, 32},
    {WeightFormat::kInt4HalfPanels, 128},
    {WeightFormat::kInt4HalfZeroPanels, 64, false},
    {WeightFormat::kMxfp4Panels},
    {WeightFormat::kNvfp4Panels},
    {WeightFormat::kIQ4XSPanels},
    {WeightFormat::kQ4_0Panels},
    {WeightFormat::kQ8_0Panels},
    {WeightFormat::kQ4KPanels},
    {WeightFormat::kQ5KPanels},
    {WeightFormat::kQ6KPanels}};

inline std::string PackedCase(const PackedKind& kind, int64_t m, int64_t n, int64_t k,
                              int64_t col0) {
  return fmt::format("{} group {}{}, {} x {} x {} from column {}", Name(kind.format), kind.group,
                     kind.symmetric ? "" : " with zeros", m, n, k, col0);
}

// The largest minimum that MakePackedPanels generates: a 6-bit code times the largest dmin.
constexpr double kMostMinimum = 63 * 0.015;

// Random panels of `rows` rows and `columns` columns.
inline WeightView MakePackedPanels(Random& random, const PackedKind& kind, int64_t rows,
                                   int64_t columns) {
  auto panels = std::make_shared<std::vector<uint8_t>>(
      PanelMatrixBytes(kind.format, kind.group, rows, columns));
  const auto put = [](uint8_t* to, auto half) { std::memcpy(to, &half.bits, sizeof half.bits); };
  const auto scale = [&] { return 0.002f * static_cast<float>(random.Below(8) - 1); };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t part = 0; part < CeilDiv(columns, kPanelColumns); ++part) {
      PanelRow values{};
      for (uint8_t& code : values.codes) code = static_cast<uint8_t>(random.Below(256));
      uint8_t* s = values.scales;
      const int64_t groups = kPanelColumns / kind.group;
      switch (kind.format) {
        case WeightFormat::kInt4Panels:
        case WeightFormat::kInt4ZeroPanels:
          for (int64_t i = 0; i < groups; ++i) put(s + 2 * i, ToBF16(scale()));
          for (int64_t i = 0; i < groups; ++i)
            s[2 * groups + i] = static_cast<uint8_t>(random.Below(17));
          break;
        case WeightFormat::kInt4HalfPanels:
        case WeightFormat::kInt4HalfZeroPanels:
          for (int64_t i = 0; i < groups; ++i) put(s + 2 * i, ToF16(scale()));
          for (int64_t i = 0; i < groups; ++i)
            s[2 * groups + i] = static_cast<uint8_t>(random.Below(17));
          break;
        case WeightFormat::kMxfp4Panels:
          for (int i = 0; i < 4; ++i) s[i] = static_cast<uint8_t>(118 + random.Below(6));
          break;
        case WeightFormat::kNvfp4Panels:  // not the NaN codes 0x7f and 0xff
          for (int i = 0; i < 8; ++i) s[i] = static_cast<uint8_t>(random.Below(0x7f));
          break;
        case WeightFormat::kIQ4XSPanels:
          for (int i = 0; i < 4; ++i) s[i] = static_cast<uint8_t>(random.Below(64) - 32);
          put(s + 4, ToF16(scale()));
          break;
        case WeightFormat::kQ4_0Panels:
        case WeightFormat::kQ8_0Panels:
          for (int i = 0; i < 4; ++i) put(s + 2 * i, ToF16(scale()));
          break;
        case WeightFormat::kQ4KPanels:
        case WeightFormat::kQ5KPanels:
          for (int i = 0; i < 8; ++i) s[i] = static_cast<uint8_t>(random.Below(64));
          put(s + 8, ToF16(scale()));
          put(s + 10, ToF16(0.001f * static_cast<float>(random.Below(15))));
          break;
        default:  // kQ6KPanels
          for (int i = 0; i < 8; ++i) s[i] = static_cast<uint8_t>(random.Below(256));
          put(s + 8, ToF16(scale()));
          break;
      }
      PutPanelRow(kind.format, kind.group, columns, row, part, values, panels->data());
    }
  }
  return {.format = kind.format,
          .data = panels->data(),
          .group_size = kind.group,
          .global_scale = kind.format == WeightFormat::kNvfp4Panels ? 0.0037f : 1.0f,
          .stored_k = columns,
          .owner = panels};
}

// A random weight, viewed from row row0 and column col0 in steps of row_step. Some rows and some
// blocks are zero.
inline WeightView MakePackedWeight(Random& random, const PackedKind& kind, int64_t n, int64_t k,
                                   int64_t row0 = 0, int64_t row_step = 1, int64_t col0 = 0,
                                   ActivationFormat activation = ActivationFormat::kInt8Group) {
  const int64_t rows = row0 + n * row_step, columns = CeilDiv(col0 + k, 32) * 32;
  const auto view = [&](WeightView w) {
    w.activation = activation;
    w.row0 = row0;
    w.row_step = row_step;
    w.col0 = col0;
    w.n = n;
    w.k = k;
    return w;
  };
  if (HasPanels(kind.format)) return view(MakePackedPanels(random, kind, rows, columns));
  std::vector<float> values = random.Normal(rows * columns);
  for (int64_t i = 0; i < rows * columns; i += 32) {
    if (random.Below(8) == 0) std::fill_n(values.begin() + i, 32, 0.0f);
  }
  if (row0 < rows) std::fill_n(values.begin() + row0 * columns, columns, 0.0f);
  return view(Quantize(kind.format, values, rows, columns,
                       {.group_size = kind.group, .symmetric = kind.symmetric}));
}

struct PackedInputs {
  int64_t m, ldx;
  std::vector<float> x, bias;
};

// Rows of different magnitudes; the second is zero.
inline PackedInputs MakePackedInputs(Random& random, int64_t m, int64_t n, int64_t k) {
  PackedInputs in = {m, k + random.Below(3), {}, random.Normal(n)};
  in.x = random.Normal(m * in.ldx + 1);
  for (int64_t i = 0; i < m; ++i) {
    const float scale = i == 1 ? 0.0f : std::exp2(static_cast<float>(random.Below(20) - 10));
    for (int64_t j = 0; j < k; ++j) in.x[i * in.ldx + j] *= scale;
  }
  return in;
}

}  // namespace switchyard::kernels
