// Products of FP8 weights with bfloat16 rows.
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/parallel.h"
#include "core/test_effort.h"
#include "kernels/cpu/rounded_rows.h"
#include "kernels/testing.h"
#include "quant/activations.h"

namespace switchyard::kernels {
namespace {

class Fp8RowsTest : public IsaTest {};

// A view of k columns from column col0 and n rows from row0 of a random matrix. Codes are random
// bytes without NaN, so that many are subnormal or large.
WeightView RandomWeight(Random& random, WeightFormat format, int64_t n, int64_t k, int64_t row0,
                        int64_t row_step, int64_t col0) {
  const int64_t rows = row0 + n * row_step, columns = col0 + k;
  WeightView w = Quantize(format, random.Normal(rows * columns), rows, columns);
  const auto codes = std::make_shared<std::vector<uint8_t>>(rows * columns);
  for (uint8_t& code : *codes) {
    code = static_cast<uint8_t>(random.Below(256));
    if ((code & 0x7f) == 0x7f) code = 0;
  }
  using Owner = std::shared_ptr<const void>;
  w.data = codes->data();
  w.owner = std::make_shared<const std::pair<Owner, Owner>>(codes, w.owner);
  w.activation = ActivationFormat::kBFloat16;
  w.row0 = row0;
  w.row_step = row_step;
  w.col0 = col0;
  w.n = n;
  w.k = k;
  return w;
}

TEST_P(Fp8RowsTest, LinearMultipliesRoundedRows) {
  Random random(1);
  ThreadPool pool(2);
  for (int round = 0; round < FewerIfSanitized(80, 4); ++round) {
    const int64_t m = random.Pick<int64_t>({0, 1, 2, 3, 4, 5, 7, 17, 40});
    const int64_t k = random.Pick<int64_t>({1, 20, 32, 33, 64, 100, 128, 129, 300, 384});
    const int64_t n = random.Pick<int64_t>({0, 1, 3, 4, 7, 70, 200});
    // From column 64 on, rows are multiplied with blocks as float32.
    const int64_t col0 = random.Pick<int64_t>({0, 0, 128, 64});
    const auto format = random.Pick({WeightFormat::kFp8Block, WeightFormat::kFp8Channel});
    const WeightView w =
        RandomWeight(random, format, n, k, random.Below(200), 1 + random.Below(2), col0);
    const int64_t ldx = k + random.Below(3), ldy = n + random.Below(3);
    const std::vector<float> x = random.Normal(m * ldx + 1), bias = random.Normal(n);
    std::vector<float> y = random.Normal(m * ldy + 1);
    const std::vector<float> before = y;
    const bool accumulate = round % 3 == 0;
    Linear({.x = x.data(),
            .ldx = ldx,
            .w = w,
            .bias = bias.data(),
            .y = y.data(),
            .ldy = ldy,
            .m = m,
            .accumulate = accumulate},
           pool);
    std::vector<float> rounded(k), row(k);
    for (int64_t i = 0; i < m; ++i) {
      RoundActivations(ActivationFormat::kBFloat16, 1, &x[i * ldx], k, rounded.data());
      for (int64_t j = 0; j < n; ++j) {
        DequantizeRow(w, j, 0, k, row.data());
        double want = bias[j] + (accumulate ? before[i * ldy + j] : 0.0f), magnitudes = 0;
        for (int64_t c = 0; c < k; ++c) {
          want += double{rounded[c]} * row[c];
          magnitudes += std::fabs(double{rounded[c]} * row[c]);
        }
        ASSERT_NEAR(y[i * ldy + j], want, 24 * kEpsilon * (magnitudes + std::fabs(want) + 1e-3))
            << m << " x " << n << " x " << k << " from column " << col0;
      }
    }
  }
}

TEST_P(Fp8RowsTest, ARowDoesNotDependOnItsBatch) {
  Random random(2);
  ThreadPool one(1), three(3);
  constexpr int64_t kRows = 23, kDepth = 420, kColumns = 150;
  for (const auto format : {WeightFormat::kFp8Block, WeightFormat::kFp8Channel}) {
    const WeightView w = RandomWeight(random, format, kColumns, kDepth, 100, 1, 128);
    const std::vector<float> x = random.Normal(kRows * kDepth);
    std::vector<float> all(kRows * kColumns), some(all.size());
    LinearParams p = {
        .x = x.data(), .ldx = kDepth, .w = w, .y = all.data(), .ldy = kColumns, .m = kRows};
    Linear(p, one);
    p.y = some.data();
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 11}) {
      for (const int64_t first : {int64_t{0}, kRows - m}) {
        p.x = x.data() + first * kDepth;
        p.m = m;
        Linear(p, three);
        ASSERT_TRUE(SameBits(some.data(), &all[first * kColumns], m * kColumns)) << m << " rows";
      }
    }
  }
}

// Each code is multiplied exactly, subnormals too. NaN stays NaN.
TEST_P(Fp8RowsTest, CodesAreExact) {
  constexpr int64_t kCodes = 256;
  std::vector<uint8_t> codes(kCodes);
  for (int64_t i = 0; i < kCodes; ++i) codes[i] = static_cast<uint8_t>(i);
  const std::vector<float> scales = {0.37f, 3.0f};
  const WeightView w = {.format = WeightFormat::kFp8Block,
                        .data = codes.data(),
                        .scales = scales.data(),
                        .activation = ActivationFormat::kBFloat16,
                        .stored_k = 1,
                        .n = kCodes,
                        .k = 1};
  ThreadPool pool(1);
  for (const int64_t m : {1, 2, 5}) {
    const std::vector<float> x(m, 1.0f);
    std::vector<float> y(m * kCodes);
    Linear({.x = x.data(), .ldx = 1, .w = w, .y = y.data(), .ldy = kCodes, .m = m}, pool);
    for (int64_t i = 0; i < m * kCodes; ++i) {
      const int64_t code = i % kCodes;
      const float value = ToFloat(F8E4M3{static_cast<uint8_t>(code)});
      if (std::isnan(value) && cpu::InputRowFormatOf(w) == cpu::InputRowFormat::kBFloat16Rows) {
        EXPECT_TRUE(std::isnan(y[i])) << code;
      } else if (!std::isnan(value)) {
        EXPECT_EQ(y[i], value * scales[code / kFp8BlockSize]) << code;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Fp8RowsTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
