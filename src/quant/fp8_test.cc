#include "quant/fp8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "quant/formats.h"

namespace switchyard {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Groups {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  bool operator==(const Groups&) const = default;
};

Groups QuantizeGroups(const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  Groups g = {std::vector<uint8_t>(n), std::vector<float>(CeilDiv(n, kFp8GroupSize))};
  QuantizeFp8Groups(x.data(), n, g.codes.data(), g.scales.data());
  return g;
}

std::vector<float> DequantizeGroups(const Groups& g) {
  std::vector<float> x(g.codes.size());
  DequantizeFp8Groups(g.codes.data(), g.scales.data(), static_cast<int64_t>(x.size()), x.data());
  return x;
}

TEST(Fp8, EncodesAsTheScalarConversionDoes) {
  // Every rounding boundary and its neighbours, both signs, and values out of range.
  std::vector<float> x = {0.0f, -0.0f, 1e-30f, -1e-12f, 500.0f, -1e30f, kInfinity, kNan, -kNan};
  for (int code = 0; code < 0x7e; ++code) {
    const float low = ToFloat(F8E4M3{static_cast<uint8_t>(code)});
    const float middle = (low + ToFloat(F8E4M3{static_cast<uint8_t>(code + 1)})) / 2;
    for (const float v :
         {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      x.push_back(v);
      x.push_back(-v);
    }
  }
  std::vector<uint8_t> codes(x.size());
  EncodeFp8(x.data(), static_cast<int64_t>(x.size()), 1.0f, codes.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(codes[i], ToF8E4M3(x[i]).bits) << x[i];
}

TEST(Fp8, DecodesAsTheScalarConversionDoes) {
  std::vector<uint8_t> codes(256);
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  std::vector<float> x(256);
  DecodeFp8(codes.data(), 256, 0.5f, x.data());
  for (int i = 0; i < 256; ++i) {
    const float want = ToFloat(F8E4M3{codes[i]}) * 0.5f;
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(x[i])) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(x[i]), std::bit_cast<uint32_t>(want)) << i;
    }
  }
}

TEST(Fp8, AGroupsLargestMagnitudeGetsTheLastCode) {
  std::vector<float> x(130, 0.5f);
  x[7] = -4.48f;
  x[129] = 896.0f;  // in the short second group
  const Groups g = QuantizeGroups(x);
  EXPECT_NEAR(g.scales[0], 0.01f, 0.01f * 0x1p-20f);
  EXPECT_EQ(g.scales[1], 2.0f);
  EXPECT_EQ(g.codes[7], 0xfe);
  EXPECT_EQ(g.codes[129], 0x7e);
  EXPECT_EQ(g.codes[128], ToF8E4M3(0.25f).bits);
}

TEST(Fp8, ZerosHaveTheSmallestScale) {
  const Groups g = QuantizeGroups(std::vector<float>(128, 0.0f));
  EXPECT_EQ(g.scales[0], 0x1p-64f);
  EXPECT_EQ(g.codes, std::vector<uint8_t>(128, 0));
}

TEST(Fp8, QuantizingADequantizedRowChangesNothing) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> power(-80, 30);
  for (int round = 0; round < 2000; ++round) {
    const float factor = std::ldexp(1.0f + 0.001f * static_cast<float>(round), power(random));
    std::vector<float> x(1 + round % 300);
    for (float& v : x) v = normal(random) * factor;
    const Groups once = QuantizeGroups(x);
    const std::vector<float> decoded = DequantizeGroups(once);
    const Groups twice = QuantizeGroups(decoded);
    ASSERT_EQ(once, twice) << round;
    ASSERT_EQ(decoded, DequantizeGroups(twice)) << round;
  }
}

TEST(Fp8, WhatIsNotFiniteStaysSo) {
  for (const float bad : {kNan, kInfinity}) {
    std::vector<float> x(256, 1.0f);
    x[3] = bad;
    const std::vector<float> decoded = DequantizeGroups(QuantizeGroups(x));
    EXPECT_FALSE(std::isfinite(decoded[3]));
    EXPECT_NEAR(decoded[200], 1.0f, 0x1p-20f);
  }
}

TEST(Fp8, FindsNanCodesAnywhere) {
  std::vector<uint8_t> codes(200000, 0x7e);
  EXPECT_FALSE(HasNanCodes(codes));
  EXPECT_FALSE(HasNanCodes({}));
  for (const size_t at : {size_t{0}, size_t{65535}, size_t{65536}, codes.size() - 1}) {
    for (const uint8_t nan : {0x7f, 0xff}) {
      codes[at] = nan;
      EXPECT_TRUE(HasNanCodes(codes));
      codes[at] = 0xfe;
    }
  }
}

}  // namespace
}  // namespace switchyard
