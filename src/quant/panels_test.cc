#include "quant/panels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "quant/ggml_blocks.h"
#include "quant/ggml_panels.h"
#include "quant/quantize.h"
#include "quant/testing.h"

namespace switchyard {
namespace {

// A view of a whole [n, k] matrix that is stored as panels.
WeightView PanelsView(WeightFormat format, const std::vector<uint8_t>& panels, int32_t group,
                      int64_t n, int64_t k) {
  return {
      .format = format, .data = panels.data(), .group_size = group, .stored_k = k, .n = n, .k = k};
}

struct Case {
  WeightFormat format;
  int32_t group;
  bool zeros;
};
constexpr Case kCases[] = {
    {WeightFormat::kInt4Group, 32, false}, {WeightFormat::kInt4Group, 32, true},
    {WeightFormat::kInt4Group, 64, true},  {WeightFormat::kInt4Group, 128, false},
    {WeightFormat::kInt4Group, 128, true}, {WeightFormat::kMxfp4, 0, false},
    {WeightFormat::kNvfp4, 0, false}};

TEST(PanelsTest, HoldTheNumbersOfRows) {
  for (const Case& c : kCases) {
    for (const int64_t k : {128, 160, 384}) {
      if (c.group != 0 && k % c.group != 0) continue;
      const int64_t n = 21;
      const WeightView rows =
          Quantize(c.format, RandomValues(n * k, 1), n, k,
                   {.group_size = c.group, .symmetric = !c.zeros, .search = true});
      const WeightFormat format = PanelFormatOf(c.format, c.group, c.zeros);
      ASSERT_TRUE(HasPanels(format));
      std::vector<uint8_t> panels(PanelMatrixBytes(format, c.group, n, k));
      // Rows are written in reverse order, because PutViewRow allows any order.
      for (int64_t i = n - 1; i >= 0; --i) PutViewRow(rows, i, format, i, panels.data());
      WeightView view = PanelsView(format, panels, c.group, n, k);
      view.global_scale = rows.global_scale;
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(Row(view, i), Row(rows, i)) << Name(format);
    }
  }
}

TEST(PanelsTest, HoldAPartOfRows) {
  constexpr int64_t kRows = 20, kColumns = 512;
  const WeightView all =
      Quantize(WeightFormat::kInt4Group, RandomValues(kRows * kColumns, 2), kRows, kColumns,
               {.group_size = 32, .symmetric = false, .search = true});
  const WeightView part = all.Rows(3, 19).Cols(96, 96 + 224);
  std::vector<uint8_t> panels(PanelMatrixBytes(WeightFormat::kInt4ZeroPanels, 32, part.n, part.k));
  for (int64_t i = 0; i < part.n; ++i)
    PutViewRow(part, i, WeightFormat::kInt4ZeroPanels, i, panels.data());
  const WeightView view = PanelsView(WeightFormat::kInt4ZeroPanels, panels, 32, part.n, part.k);
  for (int64_t i = 0; i < part.n; ++i) EXPECT_EQ(Row(view, i), Row(part, i));
}

TEST(PanelsTest, HoldTheNumbersOfGgmlBlocks) {
  std::mt19937 random(3);
  for (const GgmlTypeId id :
       {kGgmlQ4_0, kGgmlQ8_0, kGgmlQ4_K, kGgmlQ5_K, kGgmlQ6_K, kGgmlIQ4_XS, kGgmlMXFP4}) {
    const GgmlType& type = *FindGgmlType(id);
    const WeightFormat format = PanelFormatOfGgml(type);
    for (const int64_t k : {int64_t{512}, type.block_size * 5}) {
      constexpr int64_t kRows = 18;
      const int64_t row_bytes = k / type.block_size * type.block_bytes;
      std::vector<uint8_t> blocks(kRows * row_bytes);
      for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
      std::vector<float> want(kRows * k);
      // Scales of random bits may be infinite or NaN: make them finite.
      for (int64_t i = 0; i < kRows * k / type.block_size; ++i) {
        uint8_t* block = blocks.data() + i * type.block_bytes;
        const uint16_t half = ToF16(0.01f * static_cast<float>(i % 7 + 1)).bits;
        if (id == kGgmlMXFP4) {
          block[0] = static_cast<uint8_t>(120 + i % 8);
        } else if (id == kGgmlQ6_K) {
          std::memcpy(block + 208, &half, 2);
        } else {
          std::memcpy(block, &half, 2);
          if (id == kGgmlQ4_K || id == kGgmlQ5_K) std::memcpy(block + 2, &half, 2);
        }
      }
      DequantizeGgml(type, blocks.data(), kRows * k, want.data());
      const int64_t begin = type.block_size == 256 ? 128 : 32, width = k - begin;
      std::vector<uint8_t> panels(PanelMatrixBytes(format, 0, kRows, width));
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t part = 0; part * kPanelColumns < width; ++part) {
          PutPanelRow(
              format, 0, width, i, part,
              PanelRowOfGgml(type, blocks.data() + i * row_bytes, begin + part * kPanelColumns, k),
              panels.data());
        }
      }
      const WeightView view = PanelsView(format, panels, 0, kRows, width);
      for (int64_t i = 0; i < kRows; ++i) {
        const std::vector<float> row(want.begin() + i * k + begin, want.begin() + (i + 1) * k);
        EXPECT_EQ(Row(view, i), row) << type.name << " row " << i;
      }
    }
  }
}

TEST(PanelsTest, StateTheirSizes) {
  const auto bits = [](WeightFormat format, int64_t group = 32) {
    return 8 * PanelBytesPerWeight(format, group);
  };
  EXPECT_EQ(bits(WeightFormat::kInt4Panels), 4.5);
  EXPECT_EQ(bits(WeightFormat::kInt4Panels, 128), 4.125);
  EXPECT_EQ(bits(WeightFormat::kInt4ZeroPanels), 4.75);
  EXPECT_EQ(bits(WeightFormat::kInt4HalfPanels, 64), 4.25);
  EXPECT_EQ(bits(WeightFormat::kInt4HalfZeroPanels), 4.75);
  EXPECT_EQ(bits(WeightFormat::kMxfp4Panels), 4.25);
  EXPECT_EQ(bits(WeightFormat::kNvfp4Panels), 4.5);
  EXPECT_EQ(bits(WeightFormat::kQ4_0Panels), 4.5);
  EXPECT_EQ(bits(WeightFormat::kQ8_0Panels), 8.5);
  EXPECT_EQ(bits(WeightFormat::kQ4KPanels), 4.75);
  EXPECT_EQ(bits(WeightFormat::kQ5KPanels), 5.75);
  EXPECT_EQ(bits(WeightFormat::kQ6KPanels), 6.625);
  EXPECT_EQ(bits(WeightFormat::kIQ4XSPanels), 4.375);
  EXPECT_EQ(PanelMatrixBytes(WeightFormat::kMxfp4Panels, 0, 17, 130), 2 * 2 * 16 * 68);
  // A view of panels is counted with its padding, other views without.
  EXPECT_EQ(StoredBytes({.format = WeightFormat::kMxfp4Panels, .n = 17, .k = 130}),
            2 * 2 * 16 * 68);
  EXPECT_EQ(StoredBytes({.format = WeightFormat::kMxfp4, .n = 17, .k = 64}), 17 * 34);
}

}  // namespace
}  // namespace switchyard
