#include "train/math/operands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "train/math/bf16_product.h"

namespace switchyard::train {
namespace {

std::vector<float> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(count);
  for (float& v : values) v = uniform(random);
  if (count > 3) values[3] = 1e-39f;  // subnormal, so it is taken as zero
  return values;
}

struct Shape {
  int64_t m, n, k;
};
// Full and partial register tiles; odd inner dimensions; empty products.
constexpr Shape kShapes[] = {{1, 1, 1},   {6, 64, 32}, {7, 65, 33}, {24, 130, 48},
                             {13, 17, 5}, {0, 8, 4},   {96, 40, 97}};

// The three forms that layers use, of a[m, k], w[n, k], dy[m, n].
struct Results {
  std::vector<float> forward, input, weight;
};
Results Of(OperandForm form, const Shape& s) {
  const auto [m, n, k] = s;
  const std::vector<float> a = Random(m * k, 1), w = Random(n * k, 2), dy = Random(m * n, 3);
  // Packing overwrites previous contents.
  std::vector<float> panels(PanelsSize(k, n) + PanelsSize(n, k), 7.0f);
  std::vector<float> rows(m * std::max(n, k), 7.0f);
  std::vector<float> along_a(m * ((k + 63) / 64 * 64), 7.0f),
      along_dy(m * ((n + 63) / 64 * 64), 7.0f);
  Results r{.forward = std::vector<float>(m * n, 9.0f),
            .input = Random(m * k, 4),
            .weight = Random(n * k, 5)};
  PackColumns(form, w.data(), n, k, panels.data());
  MultiplyPanels(form, PackedRows(form, a.data(), m, k, rows.data()), panels.data(),
                 r.forward.data(), m, n, k, false);
  PackAlong(form, w.data(), n, k, panels.data());
  MultiplyPanels(form, PackedRows(form, dy.data(), m, n, rows.data()), panels.data(),
                 r.input.data(), m, k, n, true);
  AccumulateAlongRows(form, PackedAlong(form, dy.data(), m, n, along_dy.data()),
                      PackedAlong(form, a.data(), m, k, along_a.data()), r.weight.data(), m, n, k);
  return r;
}

// Reference sums in double over elements returned by `take`.
template <typename Take>
Results Plainly(const Shape& s, const Take& take) {
  const auto [m, n, k] = s;
  const std::vector<float> a = Random(m * k, 1), w = Random(n * k, 2), dy = Random(m * n, 3);
  Results r{
      .forward = std::vector<float>(m * n), .input = Random(m * k, 4), .weight = Random(n * k, 5)};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t q = 0; q < k; ++q) sum += double{take(a[i * k + q])} * take(w[j * k + q]);
      r.forward[i * n + j] = static_cast<float>(sum);
    }
    for (int64_t q = 0; q < k; ++q) {
      double sum = r.input[i * k + q];
      for (int64_t j = 0; j < n; ++j) sum += double{take(dy[i * n + j])} * take(w[j * k + q]);
      r.input[i * k + q] = static_cast<float>(sum);
    }
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t q = 0; q < k; ++q) {
      double sum = r.weight[j * k + q];
      for (int64_t i = 0; i < m; ++i) sum += double{take(dy[i * n + j])} * take(a[i * k + q]);
      r.weight[j * k + q] = static_cast<float>(sum);
    }
  }
  return r;
}

void ExpectNear(const std::vector<float>& found, const std::vector<float>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], 2e-5) << i;
}

TEST(OperandsTest, ProductsAreThoseOfTheElementsTaken) {
  for (const Shape& shape : kShapes) {
    for (const OperandForm form : {OperandForm::kPlain, OperandForm::kRounded}) {
      const Results found = Of(form, shape);
      const Results wanted = Plainly(
          shape, [&](float x) { return form == OperandForm::kPlain ? x : RoundedToBFloat16(x); });
      ExpectNear(found.forward, wanted.forward);
      ExpectNear(found.input, wanted.input);
      ExpectNear(found.weight, wanted.weight);
    }
  }
}

TEST(OperandsTest, PairsHaveTheBitsOfRoundedElements) {
  if (FormOfFloats(ProductDtype::kBFloat16) != OperandForm::kPairs)
    GTEST_SKIP() << "no AVX512_BF16";
  for (const Shape& shape : kShapes) {
    const Results pairs = Of(OperandForm::kPairs, shape);
    const Results rounded = Of(OperandForm::kRounded, shape);
    EXPECT_EQ(pairs.forward, rounded.forward);
    EXPECT_EQ(pairs.input, rounded.input);
    EXPECT_EQ(pairs.weight, rounded.weight);
  }
}

TEST(OperandsTest, ARowIsRoundedWhereItLies) {
  for (const int64_t n : {1, 2, 31, 32, 33, 100}) {
    const std::vector<float> row = Random(n, 6);
    std::vector<float> rounded = row;
    RoundInPlace(OperandForm::kRounded, rounded.data(), n);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(rounded[i], RoundedToBFloat16(row[i]));
    if (FormOfFloats(ProductDtype::kBFloat16) != OperandForm::kPairs) continue;
    std::vector<float> pairs = row, wanted(InnerFloats(OperandForm::kPairs, n));
    RoundInPlace(OperandForm::kPairs, pairs.data(), n);
    PackOperandRows(OperandForm::kPairs, row.data(), n, 1, n, wanted.data());
    EXPECT_EQ(std::memcmp(pairs.data(), wanted.data(), wanted.size() * sizeof(float)), 0) << n;
  }
}

}  // namespace
}  // namespace switchyard::train
