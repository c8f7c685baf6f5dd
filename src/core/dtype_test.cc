#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace switchyard {
namespace {

TEST(DTypeTest, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToF16(wide))));
    } else {
      EXPECT_EQ(ToF16(wide).bits, half.bits) << wide;
    }
  }
}

TEST(DTypeTest, EveryFp8SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const F8E4M3 x{static_cast<uint8_t>(bits)};
    if (std::isnan(ToFloat(x))) {
      EXPECT_TRUE(std::isnan(ToFloat(ToF8E4M3(ToFloat(x)))));
    } else {
      EXPECT_EQ(ToF8E4M3(ToFloat(x)).bits, x.bits) << ToFloat(x);
    }
  }
}

// A value rounds to the nearer of its two neighbours, and a midpoint to the neighbour with an even
// code.
TEST(DTypeTest, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits + 1 < 0x7f; ++bits) {
    const float low = ToFloat(F8E4M3{static_cast<uint8_t>(bits)});
    const float high = ToFloat(F8E4M3{static_cast<uint8_t>(bits + 1)});
    EXPECT_EQ(ToF8E4M3(low + 0.4f * (high - low)).bits, bits);
    EXPECT_EQ(ToF8E4M3(low + 0.6f * (high - low)).bits, bits + 1);
    EXPECT_EQ(ToF8E4M3(0.5f * (low + high)).bits, bits % 2 ? bits + 1 : bits);
  }
  EXPECT_EQ(ToBF16(1.00390625f).bits,
            0x3f80);  // halfway between 1 and its successor: rounds to the even 1
  EXPECT_EQ(ToBF16(1.01171875f).bits, 0x3f82);  // the next midpoint rounds up to the even value
  EXPECT_EQ(ToF16(65520.0f).bits, 0x7c00);      // midpoint of the largest float16 and 65536
  EXPECT_EQ(ToF16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ToF8E4M3(1e9f).bits, 0x7e);
}

TEST(DTypeTest, ParsesBothSpellings) {
  EXPECT_EQ(ParseDType("bfloat16"), DType::kBF16);
  EXPECT_EQ(ParseDType("torch.float16"), DType::kF16);
  EXPECT_EQ(ParseDType("int4"), std::nullopt);
  EXPECT_EQ(ParseSafetensorsDType("F8_E4M3"), DType::kF8E4M3);
  EXPECT_EQ(ParseSafetensorsDType("F8_E8M0"), DType::kU8);
  EXPECT_EQ(Name(DType::kU8), "uint8");
  EXPECT_EQ(ParseSafetensorsDType("bf16"), std::nullopt);
}

}  // namespace
}  // namespace switchyard
