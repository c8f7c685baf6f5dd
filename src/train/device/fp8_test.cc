// FP8 products with plain operations, against float64, and models that compute with them.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/testing.h"
#include "train/device/checks.h"
#include "train/device/model.h"
#include "train/device/plain_fp8.h"
#include "train/optimizer/adamw.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

using ::testing::HasSubstr;
using testing::OneRank;
using testing::RandomBatch;
using testing::RelativeError;

using Doubles = std::vector<double>;

// The e4m3 number nearest to x, ties to even, from the list of all of them.
double NearestFp8(double x) {
  static const Doubles kNumbers = [] {  // 0 to 448, in the order of the codes
    Doubles numbers;
    for (int code = 0; code < 127; ++code) {
      const int exponent = code / 8, part = code % 8;
      numbers.push_back(exponent == 0 ? std::ldexp(part, -9) : std::ldexp(8 + part, exponent - 10));
    }
    return numbers;
  }();
  size_t best = 0;
  for (size_t code = 1; code < kNumbers.size(); ++code) {
    const double error = std::abs(std::abs(x) - kNumbers[code]);
    const double least = std::abs(std::abs(x) - kNumbers[best]);
    if (error < least || (error == least && code % 2 == 0)) best = code;
  }
  return std::copysign(kNumbers[best], x);
}

// Rounds elements that share a scale.
void RoundBlock(std::span<double*> block) {
  double largest = 0;
  for (const double* x : block) largest = std::max(largest, std::abs(*x));
  double scale = std::ldexp(1.0, -64);
  while (largest / scale > 448) scale *= 2;
  for (double* x : block) *x = NearestFp8(*x / scale) * scale;
}

// A linear layer with random operands, some groups of which are empty, and rows of no group.
struct Fp8Layer {
  Fp8Layer(const std::vector<int32_t>& counts, int64_t outputs, int64_t inputs, uint64_t seed)
      : n(outputs), k(inputs), begins(counts.size() + 1), random(seed) {
    std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
    groups = std::ssize(counts);
    rows = begins.back() + 3;
    x = Random(rows * k);
    dy = Random(rows * n);
    w = Random(groups * n * k);
    for (std::vector<uint8_t>* array : {&codes, &transposed})
      array->resize(static_cast<size_t>(groups * n * k));
    for (std::vector<float>* array : {&scales, &transposed_scales})
      array->resize(codes.size() / (kFp8Block * kFp8Block));
    weight = {codes.data(), scales.data(), transposed.data(), transposed_scales.data()};
  }
  LinearShape shape() const {
    return {
        .rows = rows, .n = n, .k = k, .groups = groups, .offsets = begins.data(), .fp8 = &weight};
  }
  // Sizes differ by a factor of up to 2^12 between blocks.
  std::vector<float> Random(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::ldexp(normal(random), static_cast<int>(i / 100 % 13) - 6);
    return values;
  }
  // x [rows, width] in blocks of 128 elements along a row.
  Doubles RoundedRows(const std::vector<float>& from, int64_t width) const {
    Doubles rounded(from.begin(), from.end());
    for (int64_t at = 0; at < begins.back() * width; at += kFp8Block) {
      std::vector<double*> block;
      for (int64_t i = at; i < at + kFp8Block; ++i) block.push_back(&rounded[i]);
      RoundBlock(block);
    }
    return rounded;
  }
  // The same in blocks of 128 rows of a group.
  Doubles RoundedColumns(const std::vector<float>& from, int64_t width) const {
    Doubles rounded(from.begin(), from.end());
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t first = begins[g]; first < begins[g + 1]; first += kFp8Block) {
        for (int64_t column = 0; column < width; ++column) {
          std::vector<double*> block;
          for (int64_t r = first; r < std::min<int64_t>(begins[g + 1], first + kFp8Block); ++r)
            block.push_back(&rounded[r * width + column]);
          RoundBlock(block);
        }
      }
    }
    return rounded;
  }
  Doubles RoundedWeight() const {
    Doubles rounded(w.begin(), w.end());
    for (int64_t row = 0; row < groups * n; row += kFp8Block) {
      for (int64_t column = 0; column < k; column += kFp8Block) {
        std::vector<double*> block;
        for (int64_t i = 0; i < kFp8Block * kFp8Block; ++i)
          block.push_back(&rounded[(row + i / kFp8Block) * k + column + i % kFp8Block]);
        RoundBlock(block);
      }
    }
    return rounded;
  }

  int64_t n, k, groups = 0, rows = 0;
  std::vector<int32_t> begins;
  std::mt19937_64 random;
  std::vector<float> x, dy, w;
  std::vector<uint8_t> codes, transposed;
  std::vector<float> scales, transposed_scales;
  Fp8Weight weight;
};

TEST(Fp8Scale, IsTheSmallestPowerOfTwoThatKeepsTheRange) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> exponents(-50, 100);
  std::vector<float> sizes = {448.0f, std::nextafter(448.0f, 1e9f), 1.0f, 1.75f, 0x1p127f};
  for (int i = 0; i < 1000; ++i) sizes.push_back(std::exp2(exponents(random)));
  for (const float size : sizes) {
    const float scale = plain::Fp8ScaleOf(size);
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5f) << size;
    EXPECT_LE(static_cast<double>(size) / scale, 448.0);
    EXPECT_GT(static_cast<double>(size) / scale, 224.0);
  }
  for (const float size : {0.0f, 0x1p-149f, 0x1p-64f}) EXPECT_EQ(plain::Fp8ScaleOf(size), 0x1p-64f);
  EXPECT_FALSE(std::isfinite(plain::Fp8ScaleOf(std::numeric_limits<float>::infinity())));
  EXPECT_FALSE(std::isfinite(plain::Fp8ScaleOf(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Fp8Rows, DecodedRowsAreExactInBfloat16AndAreNotRoundedAgain) {
  ThreadPool pool(1);
  const auto ops = MakePlainOps<BF16>(pool);
  const int64_t m = 7, width = 384;
  const Fp8Layer layer({m}, width, 128, 5);
  std::vector<BF16> x(m * width), decoded(m * width);
  std::ranges::transform(layer.dy.begin(), layer.dy.begin() + m * width, x.begin(), ToBF16);
  std::vector<uint8_t> codes(m * width), again(m * width);
  std::vector<float> scales(m * width / kFp8Block), scales_again(scales.size());
  ops->QuantizeRows(x.data(), m, width, codes.data(), scales.data());
  ops->DecodeRows(codes.data(), scales.data(), m, width, decoded.data());
  std::vector<float> exact(m * width);
  DequantizeFp8Groups(codes.data(), scales.data(), m * width, exact.data());
  for (size_t i = 0; i < exact.size(); ++i) ASSERT_EQ(ToFloat(decoded[i]), exact[i]);
  plain::QuantizeRows(decoded.data(), m * width, again.data(), scales_again.data());
  std::vector<float> rounded_again(m * width);
  DequantizeFp8Groups(again.data(), scales_again.data(), m * width, rounded_again.data());
  EXPECT_EQ(rounded_again, exact);
}

TEST(Fp8Products, RaggedGroupsAgreeWithFloat64) {
  ThreadPool pool(2);
  const auto ops = MakePlainOps<float>(pool);
  const std::vector<int32_t> all_counts[] = {{1}, {0, 130, 0, 5, 128}, {0, 0}, {257, 1}};
  uint64_t seed = 3;
  for (const std::vector<int32_t>& counts : all_counts) {
    Fp8Layer layer(counts, seed % 2 == 0 ? 128 : 256, seed % 2 == 0 ? 384 : 128, seed);
    ++seed;
    const LinearShape s = layer.shape();
    ops->QuantizeWeight(s, layer.w.data());
    constexpr float kOld = 0.5f;  // rows of no group keep it, and sums are added to it
    std::vector<float> y(layer.rows * s.n, kOld), dx(layer.rows * s.k, kOld),
        sum(layer.rows * s.n, kOld), dw(s.groups * s.n * s.k, kOld);
    ops->Project(s, layer.x.data(), nullptr, y.data());
    ops->ProjectSum(s, layer.x.data(), nullptr, sum.data(), true);
    ops->InputGradientSum(s, layer.dy.data(), nullptr, dx.data(), true);
    ops->WeightGradient(s, layer.dy.data(), layer.x.data(), dw.data());
    const Doubles x = layer.RoundedRows(layer.x, s.k), back = layer.RoundedRows(layer.dy, s.n),
                  w = layer.RoundedWeight(), x_columns = layer.RoundedColumns(layer.x, s.k),
                  dy_columns = layer.RoundedColumns(layer.dy, s.n);
    Doubles want_y(y.size(), kOld), want_sum = want_y, want_dx(dx.size(), kOld),
                                    want_dw(dw.size(), kOld);
    for (int64_t g = 0; g < s.groups; ++g)
      for (int64_t r = layer.begins[g]; r < layer.begins[g + 1]; ++r)
        for (int64_t i = 0; i < s.n; ++i) {
          double product = 0;
          for (int64_t j = 0; j < s.k; ++j) {
            const int64_t at = (g * s.n + i) * s.k + j;
            product += x[r * s.k + j] * w[at];
            want_dx[r * s.k + j] += back[r * s.n + i] * w[at];
            want_dw[at] += dy_columns[r * s.n + i] * x_columns[r * s.k + j];
          }
          want_y[r * s.n + i] = product;
          want_sum[r * s.n + i] += product;
        }
    EXPECT_LT(RelativeError(y, want_y), 1e-5);
    EXPECT_LT(RelativeError(sum, want_sum), 1e-5);
    EXPECT_LT(RelativeError(dx, want_dx), 1e-5);
    EXPECT_LT(RelativeError(dw, want_dw), 1e-5);
  }
}

TEST(Fp8Products, TransposedWeightsHaveTheSameCodes) {
  ThreadPool pool(1);
  const auto ops = MakePlainOps<float>(pool);
  const Fp8Layer layer({1, 1, 1}, 256, 384, 8);
  const LinearShape s = layer.shape();
  ops->QuantizeWeight(s, layer.w.data());
  const int64_t across = s.n / kFp8Block, along = s.k / kFp8Block;
  for (int64_t g = 0; g < s.groups; ++g) {
    for (int64_t i = 0; i < s.n; ++i)
      for (int64_t j = 0; j < s.k; ++j)
        ASSERT_EQ(layer.transposed[(g * s.k + j) * s.n + i], layer.codes[(g * s.n + i) * s.k + j]);
    for (int64_t i = 0; i < across; ++i)
      for (int64_t j = 0; j < along; ++j)
        EXPECT_EQ(layer.transposed_scales[(g * along + j) * across + i],
                  layer.scales[(g * across + i) * along + j]);
  }
}

// The losses of some steps of AdamW on the same batch.
std::vector<double> LossesOfSteps(const ModelConfig& config, bool fp8, int steps) {
  OneRank<float> one(config, {});
  one.model.Initialise(7, 0.1);
  const auto ops = MakePlainOps<BF16>(one.pool);
  DeviceRanks alone;
  DeviceModel<BF16> model(one.model, *ops, alone, {.fp8 = fp8});
  AdamW adam(one.model.parameters(), {});
  const Batch batch = RandomBatch({9, 1, 14}, config.vocab_size, 3);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    model.Learn(batch, testing::SizeOf(batch));
    losses.push_back(model.TakeLosses().main);
    model.parameters().Step(0.005, 1.0, &adam);
  }
  return losses;
}

class Fp8ModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(Fp8ModelTest, LearnsAsWithBfloat16) {
  const ModelConfig config = ParseModelConfig(testing::Fp8Config(GetParam()));
  const std::vector<double> want = LossesOfSteps(config, false, 6),
                            got = LossesOfSteps(config, true, 6);
  EXPECT_NE(got, want);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.02 * want[0]) << i;
  EXPECT_LT(got.back(), 0.8 * got.front());
}

// A product of rounded operands has a typical error of 4 %, and a gradient is a chain of up to 20
// of them.
TEST_P(Fp8ModelTest, GradientsDifferByTheRoundingOnly) {
  const ModelConfig config = ParseModelConfig(testing::Fp8Config(GetParam()));
  const Batch batch = RandomBatch({9, 1, 14}, config.vocab_size, 3);
  const auto learn = [&](bool fp8) {
    OneRank<float> one(config, {});
    one.model.Initialise(7, 0.1);
    const auto ops = MakePlainOps<float>(one.pool);
    DeviceRanks alone;
    DeviceModel<float> model(one.model, *ops, alone, {.fp8 = fp8});
    Batch given = batch;  // a rounding error may change a choice of experts
    given.experts = testing::RandomExperts(config, batch.size(), 1.0, 5);
    model.Learn(given, testing::SizeOf(batch));
    model.parameters().GradientsToHost();
    return testing::Gradients(one.model);
  };
  const auto want = learn(false), got = learn(true);
  for (const auto& [name, gradient] : want)
    EXPECT_LT(RelativeError(got.at(name), gradient), 0.35) << name;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Fp8ModelTest, ::testing::Values("mixtral", "deepseek_v3"));

TEST(Fp8Model, OtherWidthsAreNamed) {
  const ModelConfig config = ParseModelConfig(testing::SmallConfig("mixtral"));
  EXPECT_THAT(ErrorOf([&] { CheckFp8Widths(config); }), HasSubstr("hidden_size is 12"));
  EXPECT_EQ(ErrorOf([&] { CheckFp8Widths(ParseModelConfig(testing::Fp8Config("deepseek_v3"))); }),
            "no error");
  OneRank<float> one(config, {});
  const auto ops = MakePlainOps<float>(one.pool);
  DeviceRanks alone;
  EXPECT_THAT(ErrorOf([&] { DeviceModel<float>(one.model, *ops, alone, {.fp8 = true}); }),
              HasSubstr("self_attn.q_proj.weight [16, 12]"));
}

}  // namespace
}  // namespace switchyard::train
