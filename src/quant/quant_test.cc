#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "quant/quantize.h"
#include "quant/testing.h"
#include "quant/weight_view.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;

TEST(WeightView, ReadsEveryE4M3CodeTimesItsBlocksScale) {
  // Two rows of 256: block columns 0 and 1, one block row.
  std::vector<uint8_t> codes(512);
  for (int i = 0; i < 512; ++i) codes[i] = static_cast<uint8_t>(i % 256);
  const float scales[] = {0.5f, 3.0f};
  const WeightView w = {.format = WeightFormat::kFp8Block,
                        .data = codes.data(),
                        .scales = scales,
                        .stored_k = 256,
                        .n = 2,
                        .k = 256};
  const std::vector<float> row = Row(w, 1);
  for (int i = 0; i < 256; ++i) {
    const float value = ToFloat(F8E4M3{static_cast<uint8_t>(i)}) * scales[i / 128];
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(row[i])) << i;
    } else {
      EXPECT_EQ(row[i], value) << i;
    }
  }
}

TEST(WeightView, Fp8ScalesFollowTheStoredMatrixNotTheView) {
  // A matrix of 130 × 130 has 2 × 2 block scales. The view crosses both block boundaries, so it
  // uses all four.
  const std::vector<uint8_t> codes(130 * 130, ToF8E4M3(1.0f).bits);
  const float scales[] = {1, 2, 3, 4};
  const WeightView w = {.format = WeightFormat::kFp8Block,
                        .data = codes.data(),
                        .scales = scales,
                        .stored_k = 130,
                        .row0 = 127,
                        .row_step = 2,
                        .col0 = 127,
                        .n = 2,
                        .k = 2};
  EXPECT_THAT(Row(w, 0), ElementsAre(1, 2));
  EXPECT_THAT(Row(w, 1), ElementsAre(3, 4));
}

TEST(WeightView, Mxfp4PutsTheLowNibbleFirst) {
  std::vector<uint8_t> codes(32, 0);
  codes[16] = 0x21;  // second row: 0.5, 1.0
  codes[17] = 0xf7;  //             6.0, -6.0
  const uint8_t powers[] = {127, 130};
  const WeightView w = {.format = WeightFormat::kMxfp4,
                        .data = codes.data(),
                        .scales = powers,
                        .stored_k = 32,
                        .n = 2,
                        .k = 32};
  const std::vector<float> row = Row(w, 1);
  EXPECT_THAT(std::vector<float>(row.begin(), row.begin() + 5), ElementsAre(4, 8, 48, -48, 0));
  std::vector<float> odd(2);
  DequantizeRow(w.Cols(1, 20), 1, 1, 3, odd.data());
  EXPECT_THAT(odd, ElementsAre(48, -48));
}

TEST(WeightView, Mxfp4ExponentsReachFromSubnormalToNan) {
  EXPECT_EQ(FromE8M0(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(FromE8M0(1), std::ldexp(1.0f, -126));
  EXPECT_EQ(FromE8M0(254), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(FromE8M0(255)));
}

TEST(WeightView, ReadsAtAnyAlignment) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16}) {
    const std::vector<float> values = RandomValues(64, 1);
    const WeightView w = Quantize(format, values, 2, 32);
    const auto bytes = static_cast<size_t>(64 * BytesPerWeight(format));
    std::vector<char> moved(bytes + 1);
    std::memcpy(moved.data() + 1, w.data, bytes);
    WeightView odd = w;
    odd.data = moved.data() + 1;
    EXPECT_EQ(Row(odd, 1), Row(w, 1)) << Name(format);
  }
}

TEST(WeightView, RowsAndColsComposeWithSteps) {
  std::vector<float> values(8 * 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  WeightView w = Quantize(WeightFormat::kF32, values, 8, 4);
  w.row0 = 1;
  w.row_step = 2;
  w.n = 4;  // rows 1, 3, 5, 7
  const WeightView part = w.Rows(1, 3).Cols(2, 4);
  EXPECT_EQ(part.n, 2);
  EXPECT_THAT(Row(part, 0), ElementsAre(14, 15));
  EXPECT_THAT(Row(part, 1), ElementsAre(22, 23));
}

TEST(WeightView, ReadsFp8AndInt8TimesTheirRowsScale) {
  const std::vector<uint8_t> fp8 = {0x38, 0xb8, 0x40, 0x7e};  // 1, -1; 2, 448
  const std::vector<int8_t> int8 = {1, -128, 127, 0};
  const float scales[] = {0.5f, 3.0f};
  WeightView w = {.format = WeightFormat::kFp8Channel,
                  .data = fp8.data(),
                  .scales = scales,
                  .stored_k = 2,
                  .n = 2,
                  .k = 2};
  EXPECT_THAT(Row(w, 0), ElementsAre(0.5f, -0.5f));
  EXPECT_THAT(Row(w, 1), ElementsAre(6, 1344));
  w.format = WeightFormat::kInt8Channel;
  w.data = int8.data();
  EXPECT_THAT(Row(w, 0), ElementsAre(0.5f, -64));
  EXPECT_THAT(Row(w, 1), ElementsAre(381, 0));
}

TEST(WeightView, Int4TakesZeroPointsAndScalesByGroup) {
  // Two rows of six columns in groups of four: the second group of each row is short.
  const std::vector<uint8_t> codes = {0x10, 0xf8, 0x32, 0x98, 0x76, 0x54};
  const float scales[] = {1, 10, 2, 0.5f};
  const uint8_t zeros[] = {1, 2, 8, 4};
  WeightView w = {.format = WeightFormat::kInt4Group,
                  .data = codes.data(),
                  .scales = scales,
                  .zeros = zeros,
                  .group_size = 4,
                  .stored_k = 6,
                  .n = 2,
                  .k = 6};
  EXPECT_THAT(Row(w, 0), ElementsAre(-1, 0, 7, 14, 0, 10));
  EXPECT_THAT(Row(w, 1), ElementsAre(0, 2, -4, -2, 0, 0.5f));
  EXPECT_THAT(Row(w.Cols(3, 5), 0), ElementsAre(14, 0));
  w.zeros = nullptr;
  EXPECT_THAT(Row(w, 0), ElementsAre(-8, -7, 0, 7, -60, -50));
}

TEST(WeightView, Nvfp4MultipliesBlockAndTensorScale) {
  std::vector<uint8_t> codes(16, 0);
  codes[8] = 0x21;                        // second block: 0.5, 1
  codes[15] = 0xf7;                       //               …, 6, -6
  const uint8_t scales[] = {0x38, 0x44};  // 1, 3
  const WeightView w = {.format = WeightFormat::kNvfp4,
                        .data = codes.data(),
                        .scales = scales,
                        .global_scale = 0.25f,
                        .stored_k = 32,
                        .col0 = 15,
                        .n = 1,
                        .k = 17};
  const std::vector<float> row = Row(w, 0);
  EXPECT_THAT(std::vector<float>(row.begin(), row.begin() + 4), ElementsAre(0, 0.375f, 0.75f, 0));
  EXPECT_THAT(std::vector<float>(row.end() - 2, row.end()), ElementsAre(4.5f, -4.5f));
}

TEST(WeightFormat, BytesCountTheScales) {
  EXPECT_EQ(BytesPerWeight(WeightFormat::kF32), 4);
  EXPECT_EQ(BytesPerWeight(WeightFormat::kBF16), 2);
  EXPECT_EQ(BytesPerWeight(WeightFormat::kMxfp4), 17.0 / 32);
  EXPECT_EQ(BytesPerWeight(WeightFormat::kNvfp4), 9.0 / 16);
  EXPECT_EQ(BytesPerWeight(WeightFormat::kInt4Group, 32), 21.0 / 32);
  EXPECT_EQ(BytesPerWeight(WeightFormat::kInt8Channel), 1);
  EXPECT_EQ(BytesPerWeight(WeightFormat::kFp8Block), 1 + 4.0 / 16384);
  EXPECT_EQ(Name(WeightFormat::kFp8Block), "fp8-block");
}

}  // namespace
}  // namespace switchyard
