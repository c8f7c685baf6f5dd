// Conversions of rows are bit-identical to the scalar conversions, for all vector widths.
#include "moe/rows.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing.h"

namespace switchyard {
namespace {

using kernels::SameBits;

// Random values of all magnitudes, and the neighbors of every boundary of the formats.
std::vector<float> Values() {
  kernels::Random random(1);
  std::vector<float> x(5000);
  for (float& value : x)
    value = std::bit_cast<float>(static_cast<uint32_t>(random.Below(int64_t{1} << 32)));
  for (const float value :
       {0.0f, 1.0f, 0x1p-14f, 0x1p-24f, 0x1p-25f, 0x1p-126f, 0x1p-149f, 65504.0f, 65520.0f,
        65536.0f, std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN()}) {
    for (const int32_t step : {-1, 0, 1})
      for (const uint32_t sign : {0u, 0x80000000u})
        x.push_back(std::bit_cast<float>((std::bit_cast<uint32_t>(value) + step) ^ sign));
  }
  // Midpoints between two values of bfloat16 or float16.
  for (uint32_t half = 0; half < 0x10000; half += 7) {
    x.push_back(std::bit_cast<float>(half << 16 | 0x8000u));
    x.push_back(std::bit_cast<float>(half << 13 | 0x1000u));
  }
  return x;
}

// Stores rows of 32 elements. Some rows have a value that forces the fallback path, others have
// none.
std::vector<uint16_t> StoredAs16(DType dtype, const std::vector<float>& x) {
  std::vector<uint16_t> row(x.size());
  const auto n = static_cast<int64_t>(x.size());
  for (int64_t i = 0; i < n; i += 32)
    StoreRow(dtype, x.data() + i, std::min<int64_t>(32, n - i),
             reinterpret_cast<std::byte*>(row.data() + i));
  return row;
}

TEST(RowsTest, StoreAsTheScalarConversionsDo) {
  const std::vector<float> x = Values();
  const std::vector<uint16_t> bf16 = StoredAs16(DType::kBF16, x), f16 = StoredAs16(DType::kF16, x);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(bf16[i], ToBF16(x[i]).bits) << x[i];
    ASSERT_EQ(f16[i], ToF16(x[i]).bits) << x[i];
  }
}

TEST(RowsTest, LoadAsTheScalarConversionsDo) {
  std::vector<uint16_t> row(0x10000);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<uint16_t>(i);
  std::vector<float> bf16(row.size()), f16(row.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(row.data());
  LoadRow(DType::kBF16, bytes, static_cast<int64_t>(row.size()), bf16.data());
  LoadRow(DType::kF16, bytes, static_cast<int64_t>(row.size()), f16.data());
  for (size_t i = 0; i < row.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16[i]), std::bit_cast<uint32_t>(ToFloat(BF16{row[i]})));
    ASSERT_EQ(std::bit_cast<uint32_t>(f16[i]), std::bit_cast<uint32_t>(ToFloat(F16{row[i]}))) << i;
  }
}

// A row that was rounded locally is bit-identical to a row that was sent.
TEST(RowsTest, RoundingIsStoringAndLoading) {
  kernels::Random random(2);
  for (const int64_t n : {1, 128, 200, 2048}) {
    const std::vector<float> x = random.Normal(n), y = random.Normal(n);
    for (const RowFormat format : {RowFormat{DType::kF32}, RowFormat{DType::kBF16},
                                   RowFormat{DType::kF16}, RowFormat{DType::kBF16, true}}) {
      std::vector<std::byte> stored(format.Bytes(n));
      std::vector<float> want(n), got(n);
      StoreRow(format, x.data(), n, stored.data());
      LoadRow(format, stored.data(), n, want.data());
      RoundRow(format, x.data(), n, got.data());
      EXPECT_TRUE(SameBits(got, want)) << Name(format.dtype) << " fp8 " << format.fp8;
      if (format.fp8) continue;
      want = got = y;
      AddWeightedRow(format.dtype, stored.data(), 0.3f, n, want.data());
      AddWeightedRounded(format.dtype, x.data(), 0.3f, n, got.data());
      EXPECT_TRUE(SameBits(got, want)) << Name(format.dtype);
    }
  }
}

TEST(RowsTest, SumsOfRowsAreThoseOfOneAfterTheOther) {
  kernels::Random random(4);
  for (const int64_t n : {1, 63, 64, 96, 2048}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int count : {0, 1, 8}) {
        const int64_t bytes = n * static_cast<int64_t>(SizeOf(dtype));
        std::vector<std::byte> stored(bytes * count);
        std::vector<const std::byte*> rows;
        for (int j = 0; j < count; ++j) {
          std::vector<float> x = random.Normal(n);
          x[0] = j % 2 == 0 ? NAN : 1e-40f;
          StoreRow(dtype, x.data(), n, stored.data() + j * bytes);
          rows.push_back(stored.data() + j * bytes);
        }
        const std::vector<float> weights = random.Normal(count + 1);
        std::vector<float> want(n), got(n, NAN);
        for (int j = 0; j < count; ++j) AddWeightedRow(dtype, rows[j], weights[j], n, want.data());
        SumWeightedRows(dtype, rows, weights.data(), n, got.data(), rows);
        EXPECT_TRUE(SameBits(got, want)) << Name(dtype) << " " << count << " rows of " << n;
      }
    }
  }
}

// Product and sum are rounded separately, never fused. Otherwise results would depend on the
// placement.
TEST(RowsTest, SumsRoundTheProductFirst) {
  kernels::Random random(3);
  const int64_t n = 1000;
  const std::vector<float> x = random.Normal(n), before = random.Normal(n);
  std::vector<float> sum = before;
  AddWeightedRounded(DType::kF32, x.data(), 0.7f, n, sum.data());
  for (int64_t i = 0; i < n; ++i) {
    volatile float product = 0.7f * x[i];
    ASSERT_EQ(sum[i], before[i] + product);
  }
}

}  // namespace
}  // namespace switchyard
