#include "kernels/cache_rows.h"

#include <cmath>
#include <vector>

#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI8};

// Round trip of x through the cache format.
std::vector<float> Stored(DType dtype, const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<char> row(CacheRowBytes(dtype, n));
  WriteCacheRow(dtype, x.data(), n, row.data());
  std::vector<float> back(x.size());
  ReadCacheRow(dtype, row.data(), n, back.data());
  return back;
}

TEST(CacheRowsTest, ComeBackWithinTheirTypesPrecision) {
  Random random(1);
  const std::vector<float> x = random.Normal(130);
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::abs(v));
  for (const DType dtype : kTypes) {
    const std::vector<float> back = Stored(dtype, x);
    for (size_t i = 0; i < x.size(); ++i) {
      float error = 0;
      if (dtype == DType::kBF16) error = 0x1p-8f * std::abs(x[i]);
      if (dtype == DType::kF16) error = 0x1p-11f * std::abs(x[i]);
      if (dtype == DType::kF8E4M3) error = std::max(0x1p-4f * std::abs(x[i]), 0x1p-10f);
      if (dtype == DType::kI8) error = 0.501f * largest / 127;
      EXPECT_NEAR(back[i], x[i], error) << Name(dtype);
    }
  }
}

TEST(CacheRowsTest, LargeValuesSaturateInE4M3AndScaleInInt8) {
  const std::vector<float> x = {1000.0f, -2000.0f, 0.0f, 3.0f};
  EXPECT_EQ(Stored(DType::kF8E4M3, x), (std::vector<float>{448.0f, -448.0f, 0.0f, 3.0f}));
  EXPECT_NEAR(Stored(DType::kI8, x)[1], -2000.0f, 1e-3f);
}

TEST(CacheRowsTest, ZerosStayZeros) {
  for (const DType dtype : kTypes) {
    EXPECT_EQ(Stored(dtype, {0.0f, 0.0f}), (std::vector<float>{0.0f, 0.0f})) << Name(dtype);
  }
}

TEST(CacheRowsTest, OneRowOfInt8DoesNotTouchTheNext) {
  constexpr int64_t kWidth = 5;
  std::vector<char> rows(2 * CacheRowBytes(DType::kI8, kWidth), 7);
  const std::vector<float> x = {1, 2, 3, 4, 5};
  WriteCacheRow(DType::kI8, x.data(), kWidth, rows.data());
  for (size_t i = rows.size() / 2; i < rows.size(); ++i) EXPECT_EQ(rows[i], 7);
}

TEST(CacheRowsTest, ScalesDivideTheElementsOfTheirHead) {
  const std::vector<float> x = {1.0f, -6.0f, 600.0f, 3.0f, 0.1f, -1000.0f}, scales = {0.5f, 4.0f};
  const int32_t slot = 1;
  std::vector<uint8_t> cache(12, 7);
  reference::StoreKv({.x = x.data(),
                      .ldx = 6,
                      .m = 1,
                      .n = 6,
                      .slots = &slot,
                      .cache = cache.data(),
                      .dtype = DType::kF8E4M3,
                      .scales = scales.data(),
                      .heads = 2});
  std::vector<float> back(6);
  ReadCacheRow(DType::kF8E4M3, cache.data() + 6, 6, back.data());
  EXPECT_EQ(back, (std::vector<float>{2.0f, -12.0f, 448.0f, 0.75f, 0.025390625f, -256.0f}));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(cache[i], 7);
}

class StoreCodesTest : public IsaTest {};

TEST_P(StoreCodesTest, HasTheReferencesBytes) {
  Random random(2);
  ThreadPool pool(2);
  constexpr int64_t kRows = 200, kWidth = 37;
  const std::vector<float> x = random.Normal(kRows * kWidth, 100.0f);
  const std::vector<int32_t> slots = random.Shuffled(kRows);
  for (const DType dtype : {DType::kF8E4M3, DType::kI8}) {
    std::vector<char> cache(kRows * CacheRowBytes(dtype, kWidth)), wanted(cache.size());
    StoreKvParams p = {.x = x.data(),
                       .ldx = kWidth,
                       .m = kRows,
                       .n = kWidth,
                       .slots = slots.data(),
                       .cache = cache.data(),
                       .dtype = dtype};
    StoreKv(p, pool);
    p.cache = wanted.data();
    reference::StoreKv(p);
    EXPECT_EQ(cache, wanted) << Name(dtype);
    if (dtype != DType::kF8E4M3) continue;
    const std::vector<float> scales = {0.3f};
    p.scales = scales.data();
    reference::StoreKv(p);
    EXPECT_NE(cache, wanted);
    p.cache = cache.data();
    StoreKv(p, pool);
    EXPECT_EQ(cache, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, StoreCodesTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
