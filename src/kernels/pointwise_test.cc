#include <limits>

#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

class PointwiseTest : public IsaTest {};

TEST_P(PointwiseTest, RmsNormMatchesReferenceInPlaceAndAlone) {
  Random random(1);
  ThreadPool one(1), three(3);
  for (const int64_t n : {1, 7, 16, 100, 2048, 2051}) {
    constexpr int64_t kRows = 40;
    std::vector<float> x = random.Normal(kRows * n, 3.0f);
    const std::vector<float> weight = random.Normal(n);
    std::vector<float> y(x.size()), expected(x.size()), row(n);
    RmsNormParams p = {.x = x.data(),
                       .ldx = n,
                       .weight = weight.data(),
                       .y = y.data(),
                       .ldy = n,
                       .m = kRows,
                       .n = n};
    RmsNorm(p, three);
    p.y = expected.data();
    reference::RmsNorm(p);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i], 20 * kEpsilon * (1 + std::fabs(expected[i])));
    }
    p.x = x.data() + 17 * n;
    p.m = 1;
    p.y = row.data();
    RmsNorm(p, one);
    EXPECT_TRUE(SameBits(row.data(), y.data() + 17 * n, n)) << n;
    p.x = p.y = x.data();
    p.m = kRows;
    RmsNorm(p, one);
    EXPECT_TRUE(SameBits(x, y)) << n;
  }
}

TEST_P(PointwiseTest, LayerNormSubtractsTheMeanAndAddsTheBias) {
  Random random(12);
  ThreadPool one(1), three(3);
  for (const int64_t n : {1, 7, 100, 2051}) {
    constexpr int64_t kRows = 40;
    std::vector<float> x = random.Normal(kRows * n, 3.0f);
    for (float& value : x) value += 5.0f;
    const std::vector<float> weight = random.Normal(n), bias = random.Normal(n);
    std::vector<float> y(x.size());
    LayerNormParams p = {.x = x.data(),
                         .ldx = n,
                         .weight = weight.data(),
                         .bias = bias.data(),
                         .y = y.data(),
                         .ldy = n,
                         .m = kRows,
                         .n = n};
    LayerNorm(p, three);
    for (int64_t t = 0; t < kRows; ++t) {
      long double mean = 0, variance = 0;
      for (int64_t i = 0; i < n; ++i) mean += x[t * n + i];
      mean /= n;
      for (int64_t i = 0; i < n; ++i) variance += (x[t * n + i] - mean) * (x[t * n + i] - mean);
      for (int64_t i = 0; i < n; ++i) {
        const long double norm = (x[t * n + i] - mean) / std::sqrt(variance / n + p.eps);
        ASSERT_NEAR(y[t * n + i], norm * weight[i] + bias[i], 1e-5) << n;
      }
    }
    p.x = p.y = x.data();
    LayerNorm(p, one);
    EXPECT_TRUE(SameBits(x, y)) << n;
  }
  LayerNorm({.m = 0, .n = 4}, one);  // no rows
}

TEST_P(PointwiseTest, RopeMatchesReferenceBitForBit) {
  Random random(2);
  ThreadPool pool(3);
  for (const bool interleaved : {false, true}) {
    for (const auto& [dim, rotary, offset] :
         {std::tuple{64, 64, 0}, std::tuple{48, 20, 0}, std::tuple{40, 16, 24}}) {
      constexpr int64_t kRows = 50, kHeads = 5;
      std::vector<float> x = random.Normal(kRows * kHeads * dim);
      std::vector<float> expected = x;
      const std::vector<float> table = random.Normal(int64_t{100} * rotary);
      const std::vector<int32_t> positions = random.Shuffled(100);
      RopeParams p = {.x = x.data(),
                      .ldx = kHeads * dim,
                      .m = kRows,
                      .heads = kHeads,
                      .head_dim = dim,
                      .rotary_dim = rotary,
                      .rotary_offset = offset,
                      .interleaved = interleaved,
                      .positions = positions.data(),
                      .cos_sin = table.data()};
      Rope(p, pool);
      p.x = expected.data();
      reference::Rope(p);
      EXPECT_TRUE(SameBits(x, expected)) << dim << interleaved;
    }
  }
}

TEST_P(PointwiseTest, AddInPlaceIsExact) {
  Random random(3);
  ThreadPool pool(3);
  for (const int64_t n : {0, 1, 17, 50001}) {
    std::vector<float> y = random.Normal(n);
    const std::vector<float> x = random.Normal(n);
    std::vector<float> expected = y;
    AddInPlace(y.data(), x.data(), n, pool);
    reference::AddInPlace(expected.data(), x.data(), n);
    EXPECT_TRUE(SameBits(y, expected)) << n;
  }
}

// Values at and near the limits of the narrow types.
std::vector<float> SpecialValues(Random& random) {
  std::vector<float> x = random.Normal(40000, 10.0f);
  for (float v : {0.0f, 65504.0f, 65519.0f, 65520.0f, 6e-8f, 2e-8f, 3e-8f, 6.1e-5f, 3.4e38f, 1e-40f,
                  std::numeric_limits<float>::infinity(), 1.00390625f, 1.01171875f}) {
    x.push_back(v);
    x.push_back(-v);
  }
  return x;
}

TEST_P(PointwiseTest, RoundToAndStoreKvRoundToNearestEven) {
  Random random(4);
  ThreadPool pool(3);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<float> x = SpecialValues(random);
    std::vector<float> rounded = x, expected = x;
    RoundTo(dtype, rounded.data(), static_cast<int64_t>(x.size()), pool);
    reference::RoundTo(dtype, expected.data(), static_cast<int64_t>(x.size()));
    EXPECT_TRUE(SameBits(rounded, expected)) << Name(dtype);

    constexpr int64_t kWidth = 37, kRows = 1000;
    const std::vector<int32_t> slots = random.Shuffled(kRows);
    std::vector<char> cache(kRows * kWidth * SizeOf(dtype)), wanted(cache.size());
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
  }
  std::vector<float> nan(20, std::nanf(""));
  RoundTo(DType::kBF16, nan.data(), 20, pool);
  for (float v : nan) EXPECT_TRUE(std::isnan(v));
}

TEST(SelectIsa, TakesNamesAndRefusesOthers) {
  const Isa best = ActiveIsa();
  SelectIsa("reference");
  EXPECT_EQ(ActiveIsa(), Isa::kReference);
  EXPECT_THROW(SelectIsa("sse9"), Error);
  EXPECT_EQ(ActiveIsa(), Isa::kReference);
  SelectIsa("auto");
  EXPECT_EQ(ActiveIsa(), best);
}

INSTANTIATE_TEST_SUITE_P(Isa, PointwiseTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
