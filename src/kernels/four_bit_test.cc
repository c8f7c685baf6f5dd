// Products of 4-bit weights and of panels with int8 rows. Panels have more tests in
// stored_panels_test.cc.
#include <cmath>
#include <memory>

#include "core/test_effort.h"
#include "kernels/cpu/int8_blocks.h"
#include "kernels/cpu/rounded_rows.h"
#include "kernels/packed_testing.h"
#include "kernels/reference.h"
#include "kernels/testing.h"
#include "quant/activations.h"
#include "quant/panels.h"

namespace switchyard::kernels {
namespace {

class FourBitTest : public IsaTest {};

bool HasMinima(WeightFormat format) {
  return format == WeightFormat::kQ4KPanels || format == WeightFormat::kQ5KPanels;
}

TEST_P(FourBitTest, LinearMultipliesRoundedRows) {
  Random random(1);
  ThreadPool pool(2);
  for (int round = 0; round < FewerIfSanitized(440, 4); ++round) {
    const PackedKind& kind = kPackedKinds[round % std::size(kPackedKinds)];
    const int64_t m = random.Pick<int64_t>({0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 40});
    const int64_t k = random.Pick<int64_t>({2, 30, 32, 64, 96, 128, 130, 200, 256, 384, 1000});
    const int64_t n = random.Pick<int64_t>({0, 1, 3, 15, 16, 17, 33, 70});
    // Panels are multiplied in place if the view begins at a whole panel.
    const bool whole = HasPanels(kind.format) && random.Below(4) != 0;
    const int64_t col0 =
        whole ? 128 * random.Below(3) : random.Pick<int64_t>({0, 0, 16, 32, 64, 128, 256});
    const int64_t row0 = whole ? 16 * random.Below(3) : random.Below(9);
    const bool token = random.Below(4) == 0;
    const WeightView w =
        MakePackedWeight(random, kind, n, k, row0, whole ? 1 : 1 + random.Below(2), col0,
                         token ? ActivationFormat::kInt8Token : ActivationFormat::kInt8Group);
    const PackedInputs in = MakePackedInputs(random, m, n, k);
    const int64_t ldy = n + random.Below(3);
    std::vector<float> y = random.Normal(m * ldy + 1);
    const std::vector<float> before = y;
    const bool accumulate = round % 3 == 0, biased = round % 2 != 0;
    Linear({.x = in.x.data(),
            .ldx = in.ldx,
            .w = w,
            .bias = biased ? in.bias.data() : nullptr,
            .y = y.data(),
            .ldy = ldy,
            .m = m,
            .accumulate = accumulate},
           pool);
    std::vector<float> rounded(k), row(k);
    std::vector<bool> written(y.size());
    for (int64_t i = 0; i < m; ++i) {
      RoundActivations(w.activation, 1, &in.x[i * in.ldx], k, rounded.data());
      for (int64_t j = 0; j < n; ++j) {
        DequantizeRow(w, j, 0, k, row.data());
        double want = 0, magnitudes = 0;
        for (int64_t c = 0; c < k; ++c) {
          want += double{rounded[c]} * row[c];
          magnitudes += std::fabs(double{rounded[c]} * row[c]);
          if (HasMinima(kind.format))  // codes and minima are multiplied separately
            magnitudes += 2 * kMostMinimum * std::fabs(double{rounded[c]});
        }
        // Sums in float32 are rounded by the size of their terms, which may cancel.
        const double added[] = {biased ? in.bias[j] : 0.0, accumulate ? before[i * ldy + j] : 0.0};
        for (const double term : added) {
          want += term;
          magnitudes += std::fabs(term);
        }
        // The float32 products of other instruction sets also round each product.
        const double bound = 24 * kEpsilon * (magnitudes + std::fabs(want) + 1e-3);
        ASSERT_NEAR(y[i * ldy + j], want, bound) << PackedCase(kind, m, n, k, col0);
        written[i * ldy + j] = true;
      }
    }
    for (size_t i = 0; i < y.size(); ++i) {
      if (!written[i]) {
        ASSERT_EQ(y[i], before[i]) << PackedCase(kind, m, n, k, col0);
      }
    }
  }
}

// The scale and the minimum of a column: a weight plus the minimum is a multiple of the scale.
struct Numbers {
  float scale = 0, minimum = 0;
};
Numbers NumbersOfPanels(const WeightView& w, int64_t row, int64_t column) {
  const PanelRow values = GetPanelRow(w.format, w.group_size, w.stored_k, row,
                                      column / kPanelColumns, static_cast<const uint8_t*>(w.data));
  const int64_t j = column % kPanelColumns;
  const uint8_t* s = values.scales;
  const auto half = [s](int64_t at) {
    F16 number;
    std::memcpy(&number, s + at, sizeof number);
    return ToFloat(number);
  };
  switch (w.format) {
    case WeightFormat::kMxfp4Panels:
      return {.scale = 0.5f * FromE8M0(s[j / 32])};
    case WeightFormat::kNvfp4Panels:
      return {.scale = 0.5f * (ToFloat(F8E4M3{s[j / 16]}) * w.global_scale)};
    case WeightFormat::kIQ4XSPanels:
      return {.scale = half(4) * static_cast<float>(static_cast<int8_t>(s[j / 32]))};
    case WeightFormat::kInt4HalfPanels:
    case WeightFormat::kInt4HalfZeroPanels:
      return {.scale = half(j / w.group_size * 2)};
    case WeightFormat::kQ4_0Panels:
    case WeightFormat::kQ8_0Panels:
      return {.scale = half(j / 32 * 2)};
    case WeightFormat::kQ4KPanels:
    case WeightFormat::kQ5KPanels:
      return {.scale = half(8) * static_cast<float>(s[j / 32]),
              .minimum = half(10) * static_cast<float>(s[4 + j / 32])};
    case WeightFormat::kQ6KPanels:
      return {.scale = half(8) * static_cast<float>(static_cast<int8_t>(s[j / 16]))};
    default: {
      BF16 number;
      std::memcpy(&number, s + j / w.group_size * 2, sizeof number);
      return {.scale = ToFloat(number)};
    }
  }
}
Numbers NumbersOf(const WeightView& w, int64_t row, int64_t column) {
  const int64_t stored_row = w.row0 + row * w.row_step, stored = w.col0 + column;
  if (HasPanels(w.format)) return NumbersOfPanels(w, stored_row, stored);
  if (w.format == WeightFormat::kInt4Group) {
    const int64_t groups = CeilDiv(w.stored_k, w.group_size);
    return {.scale =
                static_cast<const float*>(w.scales)[stored_row * groups + stored / w.group_size]};
  }
  // Weights are at most 6, so the scale follows from one weight that is not 0.
  WeightView one = w;
  const std::vector<uint8_t> ones(w.stored_k / 2 * (stored_row + 1), 0x11);  // 0.5
  one.data = ones.data();
  Numbers numbers;
  DequantizeRow(one, row, column, column + 1, &numbers.scale);
  return numbers;
}

// Computes the sum in the order that cpu/int8_blocks.h defines.
float InBlockOrder(const WeightView& w, int64_t row, const float* x) {
  const int64_t block = cpu::Int8BlockColumns(w), k = w.k;
  std::vector<int8_t> codes(k);
  float total = 0, x_scale = 0;
  const bool token = w.activation == ActivationFormat::kInt8Token;
  if (token) x_scale = QuantizeInt8Row(x, k, codes.data()).scale;
  for (int64_t chunk = 0; chunk < k; chunk += kInt8GroupSize) {
    const int64_t chunk_end = std::min(k, chunk + kInt8GroupSize);
    if (!token) x_scale = QuantizeInt8Row(x + chunk, chunk_end - chunk, &codes[chunk]).scale;
    float inner = 0;
    for (int64_t begin = chunk; begin < chunk_end; begin += block) {
      const int64_t count = std::min(chunk_end - begin, block);
      std::vector<float> weights(count);
      DequantizeRow(w, row, begin, begin + count, weights.data());
      const Numbers numbers = NumbersOf(w, row, begin);
      int32_t sum = 0, x_sum = 0;
      for (int64_t j = 0; j < count; ++j) {
        const float step = numbers.scale == 0 ? 0 : (weights[j] + numbers.minimum) / numbers.scale;
        sum += static_cast<int32_t>(std::lround(step)) * codes[begin + j];
        x_sum += codes[begin + j];
      }
      inner = std::fma(static_cast<float>(sum), numbers.scale, inner);
      if (HasMinima(w.format)) inner = std::fma(numbers.minimum, static_cast<float>(-x_sum), inner);
    }
    total = std::fma(inner, x_scale, total);
  }
  return total;
}

TEST_P(FourBitTest, SumsHaveTheDocumentedOrder) {
  if (!HasFourBitProducts(GetParam())) GTEST_SKIP() << "rounded rows are multiplied in float32";
  Random random(2);
  ThreadPool pool(2);
  for (int round = 0; round < FewerIfSanitized(220, 4); ++round) {
    const PackedKind& kind = kPackedKinds[round % std::size(kPackedKinds)];
    const int64_t m = random.Pick<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 20});
    const int64_t k = random.Pick<int64_t>({32, 96, 128, 160, 256, 290, 512, 1000, 1400});
    const int64_t n = random.Pick<int64_t>({1, 5, 16, 31, 40, 70});
    const WeightView w =
        HasPanels(kind.format)
            ? MakePackedWeight(random, kind, n, k, 16 * random.Below(3), 1, 128)
            : MakePackedWeight(random, kind, n, k, random.Below(5), 1 + random.Below(2), 128);
    EXPECT_EQ(cpu::InputRowFormatOf(w) == cpu::InputRowFormat::kInt8Blocks, kind.group != 48);
    if (kind.group == 48) continue;
    const PackedInputs in = MakePackedInputs(random, m, n, k);
    std::vector<float> y(m * n), want(m * n);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        want[i * n + j] = InBlockOrder(w, j, &in.x[i * in.ldx]) + in.bias[j];
      }
    }
    Linear({.x = in.x.data(),
            .ldx = in.ldx,
            .w = w,
            .bias = in.bias.data(),
            .y = y.data(),
            .ldy = n,
            .m = m},
           pool);
    ASSERT_TRUE(SameBits(y, want)) << PackedCase(kind, m, n, k, 128);
  }
}

TEST_P(FourBitTest, ARowDoesNotDependOnItsBatch) {
  Random random(3);
  ThreadPool one(1), three(3);
  constexpr int64_t kRows = 37, kDepth = 416, kColumns = 150;
  for (const PackedKind& kind : kPackedKinds) {
    const WeightView w = MakePackedWeight(random, kind, kColumns, kDepth);
    const PackedInputs in = MakePackedInputs(random, kRows, kColumns, kDepth);
    std::vector<float> all(kRows * kColumns), some(all.size());
    LinearParams p = {
        .x = in.x.data(), .ldx = in.ldx, .w = w, .y = all.data(), .ldy = kColumns, .m = kRows};
    Linear(p, one);
    p.y = some.data();
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}) {
      for (const int64_t first : {int64_t{0}, kRows - m}) {
        p.x = in.x.data() + first * in.ldx;
        p.m = m;
        Linear(p, three);
        ASSERT_TRUE(SameBits(some.data(), &all[first * kColumns], m * kColumns))
            << PackedCase(kind, m, kColumns, kDepth, 0) << " first " << first;
      }
    }
  }
}

// Zero points have values from 0 to 16. The value 16 occurs in GPTQ's first layout, which stores
// zero - 1.
TEST_P(FourBitTest, ZeroPointsReachTheEdges) {
  ThreadPool pool(1);
  constexpr int64_t kDepth = 128, kColumns = 17;
  const std::vector<uint8_t> codes(kColumns * kDepth / 2, 0xf0);  // 0, 15, 0, 15, …
  const std::vector<float> scales(kColumns, 0.5f), x(kDepth, 127.0f);
  std::vector<uint8_t> zeros(kColumns);
  for (int64_t j = 0; j < kColumns; ++j) zeros[j] = static_cast<uint8_t>(j);
  std::vector<float> y(kColumns);
  Linear({.x = x.data(),
          .ldx = kDepth,
          .w = {.format = WeightFormat::kInt4Group,
                .data = codes.data(),
                .scales = scales.data(),
                .zeros = zeros.data(),
                .group_size = 128,
                .activation = ActivationFormat::kInt8Group,
                .stored_k = kDepth,
                .n = kColumns,
                .k = kDepth},
          .y = y.data(),
          .ldy = kColumns,
          .m = 1},
         pool);
  for (int64_t j = 0; j < kColumns; ++j) {
    const auto zero = static_cast<float>(j);
    EXPECT_EQ(y[j], 127.0f * 64 * 0.5f * (15 - 2 * zero)) << j;
  }
}

// The smallest and the largest exponents of MXFP4.
TEST_P(FourBitTest, BlockExponentsKeepTheirValues) {
  ThreadPool pool(1);
  constexpr int64_t kDepth = 32;
  const uint8_t exponents[] = {0, 1, 2, 60, 127, 200, 254, 255};
  constexpr int64_t kColumns = std::size(exponents);
  const std::vector<uint8_t> codes(kColumns * kDepth / 2, 0x22);  // 1
  const std::vector<float> x(kDepth, 127.0f / 1024);
  std::vector<float> y(kColumns);
  Linear({.x = x.data(),
          .ldx = kDepth,
          .w = {.format = WeightFormat::kMxfp4,
                .data = codes.data(),
                .scales = exponents,
                .activation = ActivationFormat::kInt8Group,
                .stored_k = kDepth,
                .n = kColumns,
                .k = kDepth},
          .y = y.data(),
          .ldy = kColumns,
          .m = 1},
         pool);
  for (int64_t j = 0; j + 1 < kColumns; ++j) {
    const double want = 32 * 127.0 / 1024 * FromE8M0(exponents[j]);
    if (want > 3.4e38) continue;
    EXPECT_NEAR(y[j], want, 1e-4 * want) << int{exponents[j]};
  }
  EXPECT_TRUE(std::isnan(y[kColumns - 1]));
}

INSTANTIATE_TEST_SUITE_P(Isa, FourBitTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
