#include "quant/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "quant/testing.h"
#include "quant/weight_view.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

// Rows of different magnitudes, including a row of zeros.
std::vector<float> RandomRows(int64_t n, int64_t k, unsigned seed) {
  std::vector<float> values = RandomValues(n * k, seed);
  for (int64_t i = 0; i < n; ++i) {
    const float factor = i == 1 ? 0.0f : std::ldexp(1.0f, static_cast<int>(i % 7) * 3 - 9);
    for (int64_t j = 0; j < k; ++j) values[i * k + j] *= factor;
  }
  return values;
}

TEST(Quantize, Fp8RoundsWithinHalfAStepOfItsBlock) {
  const std::vector<float> values = RandomValues(200 * 150, 2);
  const WeightView w = Quantize(WeightFormat::kFp8Block, values, 200, 150);
  const auto* scales = static_cast<const float*>(w.scales);
  for (int64_t i = 0; i < 200; ++i) {
    const std::vector<float> row = Row(w, i);
    for (int64_t j = 0; j < 150; ++j) {
      const float value = values[i * 150 + j];
      const float scale = scales[i / 128 * 2 + j / 128];
      // e4m3 has three mantissa bits, and steps of 2^-9 below the first normal.
      const float half_step = std::max(std::fabs(value) / 16, scale / 1024);
      EXPECT_NEAR(row[j], value, half_step * 1.0001f);
    }
  }
}

TEST(Quantize, Mxfp4KeepsRepresentableBlocks) {
  std::vector<float> values(64);
  for (int i = 0; i < 64; ++i) values[i] = kE2M1[i % 16] * (i < 32 ? 4.0f : 0.125f);
  const WeightView w = Quantize(WeightFormat::kMxfp4, values, 2, 32);
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Row(w, i), std::vector<float>(values.begin() + i * 32, values.begin() + i * 32 + 32));
  }
}

TEST(Quantize, Mxfp4BreaksTiesToTheEvenCode) {
  std::vector<float> values(32, 0.0f);
  values[0] = 4.0f;  // exponent 0
  values[1] = 0.25f;
  values[2] = 0.75f;
  values[3] = 1.25f;
  values[4] = 5.0f;
  const WeightView w = Quantize(WeightFormat::kMxfp4, values, 1, 32);
  const std::vector<float> row = Row(w, 0);
  EXPECT_THAT(std::vector<float>(row.begin(), row.begin() + 5), ElementsAre(4, 0, 1, 1, 4));
}

TEST(Quantize, ChannelFormatsMapEachRowsLargestToTheLastCode) {
  const std::vector<float> values = {1, -4, 2, 0.25f, 0, 0, 0, 0};
  const WeightView fp8 = Quantize(WeightFormat::kFp8Channel, values, 2, 4);
  EXPECT_EQ(static_cast<const float*>(fp8.scales)[0], 4.0f / 448);
  EXPECT_EQ(static_cast<const uint8_t*>(fp8.data)[1], 0xfe);
  EXPECT_THAT(Row(fp8, 1), ElementsAre(0, 0, 0, 0));
  const std::vector<float> steps = {127, -63.5f, 62.5f, -127, 0, 0, 0, 0};
  const WeightView int8 = Quantize(WeightFormat::kInt8Channel, steps, 2, 4);
  EXPECT_EQ(static_cast<const float*>(int8.scales)[0], 1);
  EXPECT_THAT(Row(int8, 0), ElementsAre(127, -64, 62, -127));  // ties to even
  EXPECT_THAT(Row(int8, 1), ElementsAre(0, 0, 0, 0));
}

TEST(Quantize, ChannelFormatsRoundWithinHalfAStep) {
  constexpr int64_t kRows = 20, kColumns = 203;
  const std::vector<float> values = RandomRows(kRows, kColumns, 3);
  const WeightView fp8 = Quantize(WeightFormat::kFp8Channel, values, kRows, kColumns);
  const WeightView int8 = Quantize(WeightFormat::kInt8Channel, values, kRows, kColumns);
  for (int64_t i = 0; i < kRows; ++i) {
    const std::vector<float> fp8_row = Row(fp8, i), int8_row = Row(int8, i);
    const float fp8_scale = static_cast<const float*>(fp8.scales)[i];
    const float int8_scale = static_cast<const float*>(int8.scales)[i];
    for (int64_t j = 0; j < kColumns; ++j) {
      const float value = values[i * kColumns + j];
      const float half_step = std::max(std::fabs(value) / 16, fp8_scale / 1024);
      EXPECT_NEAR(fp8_row[j], value, half_step * 1.0001f);
      EXPECT_NEAR(int8_row[j], value, int8_scale / 2 * 1.0001f);
    }
  }
}

TEST(Quantize, Int4KeepsRepresentableGroups) {
  // Symmetric: the largest magnitude maps to 7.5 steps, so -8 steps do not occur.
  const std::vector<float> values = {-7.5f, 7.5f, 3, -3, 0.5f, 1.5f, 0, 0, 15, -14};
  const WeightView w =
      Quantize(WeightFormat::kInt4Group, values, 1, 10, {.group_size = 4, .symmetric = true});
  EXPECT_EQ(w.group_size, 4);
  EXPECT_EQ(w.zeros, nullptr);
  const auto* scales = static_cast<const float*>(w.scales);
  EXPECT_THAT(std::vector<float>(scales, scales + 3), ElementsAre(1, 0.2f, 2));
  const std::vector<float> row = Row(w, 0);
  EXPECT_THAT(std::vector<float>(row.begin(), row.begin() + 4), ElementsAre(-8, 7, 3, -3));
  EXPECT_THAT(std::vector<float>(row.begin() + 8, row.end()), ElementsAre(14, -14));
}

TEST(Quantize, Int4ZeroPointsSpanEachGroup) {
  const std::vector<float> values = {-5, 10, 0, 4, 30, 2, 4, 6, -3, -1.5f, 0, 0};
  const WeightView w =
      Quantize(WeightFormat::kInt4Group, values, 2, 6, {.group_size = 4, .symmetric = false});
  const auto* zeros = static_cast<const uint8_t*>(w.zeros);
  ASSERT_NE(zeros, nullptr);
  EXPECT_THAT(std::vector<int>(zeros, zeros + 4), ElementsAre(5, 0, 5, 0));
  EXPECT_THAT(Row(w, 0), ElementsAre(-5, 10, 0, 4, 30, 2));
  EXPECT_THAT(Row(w, 1), ElementsAre(FloatNear(4.2f, 1e-6f), FloatNear(6, 1e-6f),
                                     FloatNear(-3, 1e-6f), FloatNear(-1.2f, 1e-6f), 0, 0));
}

TEST(Quantize, Int4RoundsWithinAStep) {
  constexpr int64_t kRows = 9, kColumns = 200;  // the last group is short
  const std::vector<float> values = RandomRows(kRows, kColumns, 4);
  for (const bool symmetric : {true, false}) {
    for (const int32_t group : {32, 64, 128}) {
      const WeightView w = Quantize(WeightFormat::kInt4Group, values, kRows, kColumns,
                                    {.group_size = group, .symmetric = symmetric});
      const int64_t groups = CeilDiv(kColumns, group);
      for (int64_t i = 0; i < kRows; ++i) {
        const std::vector<float> row = Row(w, i);
        for (int64_t j = 0; j < kColumns; ++j) {
          const float scale = static_cast<const float*>(w.scales)[i * groups + j / group];
          // Without these, the error is at most half a step. Rounding of the zero point, or
          // clamping to the last code, may add as much again.
          EXPECT_NEAR(row[j], values[i * kColumns + j], scale * (symmetric ? 0.5001f : 1.0001f));
        }
      }
    }
  }
}

TEST(Quantize, Nvfp4KeepsRepresentableBlocks) {
  // Block scales 448, 3 and 0.25 with a tensor scale of 2^-5, and a block of zeros.
  std::vector<float> values(64, 0.0f);
  const float scales[] = {448, 3, 0.25f, 0};
  for (int i = 0; i < 64; ++i) values[i] = kE2M1[i % 16] * scales[i / 16] * 0x1p-5f;
  const WeightView w = Quantize(WeightFormat::kNvfp4, values, 2, 32);
  EXPECT_EQ(w.global_scale, 0x1p-5f);
  const auto* codes = static_cast<const uint8_t*>(w.scales);
  for (int b = 0; b < 4; ++b) EXPECT_EQ(codes[b], ToF8E4M3(scales[b]).bits);
  EXPECT_EQ(Row(w, 0), std::vector<float>(values.begin(), values.begin() + 32));
  EXPECT_EQ(Row(w, 1), std::vector<float>(values.begin() + 32, values.end()));
}

TEST(Quantize, Nvfp4RoundsWithinHalfAStepOfItsBlock) {
  constexpr int64_t kRows = 7, kColumns = 96;
  const std::vector<float> values = RandomValues(kRows * kColumns, 5);
  const WeightView w = Quantize(WeightFormat::kNvfp4, values, kRows, kColumns);
  for (int64_t i = 0; i < kRows; ++i) {
    const std::vector<float> row = Row(w, i);
    for (int64_t j = 0; j < kColumns; ++j) {
      const float value = values[i * kColumns + j];
      const auto* codes = static_cast<const uint8_t*>(w.scales);
      const float scale = ToFloat(F8E4M3{codes[(i * kColumns + j) / 16]}) * w.global_scale;
      // The step of e2m1 is 0.5 up to 2, 1 up to 4, then 2. If the scale is rounded down, larger
      // values are clamped to 6.
      const float magnitude = std::fabs(value) / scale;
      const float half_step = magnitude < 2 ? 0.25f : magnitude < 4 ? 0.5f : 1.0f;
      EXPECT_NEAR(row[j], value, half_step * scale * 1.0001f) << i << ", " << j;
    }
  }
}

}  // namespace
}  // namespace switchyard
