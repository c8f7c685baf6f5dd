#include "quant/activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "quant/fp8.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;

std::vector<float> Rounded(ActivationFormat format, const std::vector<float>& x,
                           float input_scale = 1.0f) {
  std::vector<float> out(x.size());
  RoundActivations(format, input_scale, x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

std::vector<float> RandomRow(int64_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

TEST(RoundActivations, NoneKeepsTheRow) {
  const std::vector<float> x = RandomRow(77);
  EXPECT_EQ(Rounded(ActivationFormat::kNone, x), x);
}

TEST(RoundActivations, Fp8TokenHasOneScaleForTheRow) {
  const std::vector<float> x = RandomRow(333);
  const float scale = Fp8Scale(x.data(), 333);
  EXPECT_NEAR(scale, *std::max_element(x.begin(), x.end()) / 448, 0.2 / 448);
  const std::vector<float> out = Rounded(ActivationFormat::kFp8Token, x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(out[i], ToFloat(ToF8E4M3(x[i] * (1.0f / scale))) * scale);
  }
}

TEST(RoundActivations, Fp8GroupGivesTheValuesThatAreSentInFp8) {
  const std::vector<float> x = RandomRow(333);
  std::vector<uint8_t> codes(333);
  std::vector<float> scales(3), dequantized(333);
  QuantizeFp8Groups(x.data(), 333, codes.data(), scales.data());
  DequantizeFp8Groups(codes.data(), scales.data(), 333, dequantized.data());
  EXPECT_EQ(Rounded(ActivationFormat::kFp8Group, x), dequantized);
  EXPECT_EQ(Rounded(ActivationFormat::kFp8Group, dequantized), dequantized);
}

TEST(RoundActivations, Fp8TensorSaturatesAtTheGivenScale) {
  EXPECT_THAT(Rounded(ActivationFormat::kFp8Tensor, {3, 3.1f, -1e6f, 0.0f}, 0.5f),
              ElementsAre(3, 3, -224, 0));
}

TEST(RoundActivations, Int8RoundsToWholeSteps) {
  EXPECT_THAT(Rounded(ActivationFormat::kInt8Token, {254, 3, 4.9f, -254, 1}),
              ElementsAre(254, 4, 4, -254, 0));  // ties to even
  EXPECT_THAT(Rounded(ActivationFormat::kInt8Token, {0, 0}), ElementsAre(0, 0));
}

TEST(RoundActivations, WorksInPlace) {
  for (const ActivationFormat format :
       {ActivationFormat::kFp8Group, ActivationFormat::kFp8Token, ActivationFormat::kFp8Tensor,
        ActivationFormat::kInt8Token}) {
    std::vector<float> x = RandomRow(200);
    const std::vector<float> want = Rounded(format, x, 0.01f);
    RoundActivations(format, 0.01f, x.data(), 200, x.data());
    EXPECT_EQ(x, want);
  }
}

TEST(QuantizeInt8Row, GivesCodesScaleAndSum) {
  const std::vector<float> x = {127, -3.5f, 2.5f, -127, 40};
  std::vector<int8_t> codes(5);
  const Int8Row row = QuantizeInt8Row(x.data(), 5, codes.data());
  EXPECT_EQ(row.scale, 1);
  EXPECT_THAT(codes, ElementsAre(127, -4, 2, -127, 40));
  EXPECT_EQ(row.sum, 38);
}

TEST(QuantizeInt8Row, AgreesWithTheRoundedFloats) {
  const std::vector<float> x = RandomRow(517);
  std::vector<int8_t> codes(517);
  const Int8Row row = QuantizeInt8Row(x.data(), 517, codes.data());
  const std::vector<float> rounded = Rounded(ActivationFormat::kInt8Token, x);
  int32_t sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(static_cast<float>(codes[i]) * row.scale, rounded[i]);
    EXPECT_NEAR(rounded[i], x[i], row.scale / 2 * 1.0001f);
    sum += codes[i];
  }
  EXPECT_EQ(row.sum, sum);
}

TEST(RoundActivations, ANanReachesTheResult) {
  const std::vector<float> x = {1, std::numeric_limits<float>::quiet_NaN(), 2};
  for (const ActivationFormat format :
       {ActivationFormat::kFp8Group, ActivationFormat::kFp8Token, ActivationFormat::kFp8Tensor,
        ActivationFormat::kInt8Token}) {
    EXPECT_TRUE(std::isnan(Rounded(format, x)[1])) << static_cast<int>(format);
  }
}

TEST(RoundActivations, Int8GroupsHaveTheirOwnScales) {
  std::vector<float> x = RandomRow(333);
  for (size_t i = 128; i < 256; ++i) x[i] *= 100;
  for (size_t i = 256; i < x.size(); ++i) x[i] = 0;
  std::vector<int8_t> codes(333);
  std::vector<float> scales(3);
  QuantizeInt8Groups(x.data(), 333, codes.data(), scales.data());
  const std::vector<float> out = Rounded(ActivationFormat::kInt8Group, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const float scale = scales[i / 128];
    EXPECT_EQ(out[i], static_cast<float>(codes[i]) * scale);
    EXPECT_NEAR(out[i], x[i], 0.501f * scale);
  }
  for (int64_t group = 0; group < 3; ++group) {
    std::vector<int8_t> alone(128);
    const int64_t first = group * 128, n = std::min<int64_t>(128, 333 - first);
    EXPECT_EQ(QuantizeInt8Row(&x[first], n, alone.data()).scale, scales[group]);
    EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + n, codes.begin() + first));
  }
}

}  // namespace
}  // namespace switchyard
