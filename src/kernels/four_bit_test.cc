// Products of 4-bit weights and of panels with int8 rows.
#include <cmath>
#include <memory>

#include "core/test_effort.h"
#include "kernels/cpu/int8_blocks.h"
#include "kernels/cpu/rounded_rows.h"
#include "kernels/reference.h"
#include "kernels/testing.h"
#include "quant/activations.h"
#include "quant/panels.h"

namespace switchyard::kernels {
namespace {

class FourBitTest : public IsaTest {};

// A weight format with its groups.
struct Kind {
  WeightFormat format;
  int32_t group = 128;
  bool symmetric = true;
};

constexpr Kind kKinds[] = {{WeightFormat::kInt4Group, 32},
                           {WeightFormat::kInt4Group, 32, false},
                           {WeightFormat::kInt4Group, 64},
                           {WeightFormat::kInt4Group, 64, false},
                           {WeightFormat::kInt4Group, 128},
                           {WeightFormat::kInt4Group, 128, false},
                           {WeightFormat::kInt4Group, 256, false},
                           {WeightFormat::kInt4Group, 4096, false},
                           {WeightFormat::kInt4Group, 48},  // without an integer product
                           {WeightFormat::kMxfp4},
                           {WeightFormat::kNvfp4},
                           {WeightFormat::kInt4Panels, 32},
                           {WeightFormat::kInt4Panels, 64},
                           {WeightFormat::kInt4Panels, 128},
                           {WeightFormat::kInt4ZeroPanels, 32, false},
                           {WeightFormat::kInt4ZeroPanels, 64, false},
                           {WeightFormat::kInt4ZeroPanels, 128, false},
                           {WeightFormat::kInt4HalfPanels, 32},
                           {WeightFormat::kInt4HalfPanels, 128},
                           {WeightFormat::kInt4HalfZeroPanels, 64, false},
                           {WeightFormat::kMxfp4Panels},
                           {WeightFormat::kNvfp4Panels},
                           {WeightFormat::kIQ4XSPanels},
                           {WeightFormat::kQ4_0Panels},
                           {WeightFormat::kQ8_0Panels},
                           {WeightFormat::kQ4KPanels},
                           {WeightFormat::kQ5KPanels},
                           {WeightFormat::kQ6KPanels}};

std::string What(const Kind& kind, int64_t m, int64_t n, int64_t k, int64_t col0) {
  return fmt::format("{} group {}{}, {} x {} x {} from column {}", Name(kind.format), kind.group,
                     kind.symmetric ? "" : " with zeros", m, n, k, col0);
}

bool HasMinima(WeightFormat format) {
  return format == WeightFormat::kQ4KPanels || format == WeightFormat::kQ5KPanels;
}
// The largest minimum that MakePanels generates: a 6-bit code times the largest dmin.
constexpr double kMostMinimum = 63 * 0.015;

// Random panels of `rows` rows and `columns` columns.
WeightView MakePanels(Random& random, const Kind& kind, int64_t rows, int64_t columns) {
  auto panels = std::make_shared<std::vector<uint8_t>>(
      PanelMatrixBytes(kind.format, kind.group, rows, columns));
  const auto put = [](uint8_t* to, auto half) { std::memcpy(to, &half.bits, sizeof half.bits); };
  const auto scale = [&] { return 0.002f * static_cast<float>(random.Below(8) - 1); };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t part = 0; part < CeilDiv(columns, kPanelColumns); ++part) {
      PanelRow values{};
      for (uint8_t& code : values.codes) code = static_cast<uint8_t>(random.Below(256));
      uint8_t* s = values.scales;
      const int64_t groups = kPanelColumns / kind.group;
      switch (kind.format) {
        case WeightFormat::kInt4Panels:
        case WeightFormat::kInt4ZeroPanels:
          for (int64_t i = 0; i < groups; ++i) put(s + 2 * i, ToBF16(scale()));
          for (int64_t i = 0; i < groups; ++i)
            s[2 * groups + i] = static_cast<uint8_t>(random.Below(17));
          break;
        case WeightFormat::kInt4HalfPanels:
        case WeightFormat::kInt4HalfZeroPanels:
          for (int64_t i = 0; i < groups; ++i) put(s + 2 * i, ToF16(scale()));
          for (int64_t i = 0; i < groups; ++i)
            s[2 * groups + i] = static_cast<uint8_t>(random.Below(17));
          break;
        case WeightFormat::kMxfp4Panels:
          for (int i = 0; i < 4; ++i) s[i] = static_cast<uint8_t>(118 + random.Below(6));
          break;
        case WeightFormat::kNvfp4Panels:  // not the NaN codes 0x7f and 0xff
          for (int i = 0; i < 8; ++i) s[i] = static_cast<uint8_t>(random.Below(0x7f));
          break;
        case WeightFormat::kIQ4XSPanels:
          for (int i = 0; i < 4; ++i) s[i] = static_cast<uint8_t>(random.Below(64) - 32);
          put(s + 4, ToF16(scale()));
          break;
        case WeightFormat::kQ4_0Panels:
        case WeightFormat::kQ8_0Panels:
          for (int i = 0; i < 4; ++i) put(s + 2 * i, ToF16(scale()));
          break;
        case WeightFormat::kQ4KPanels:
        case WeightFormat::kQ5KPanels:
          for (int i = 0; i < 8; ++i) s[i] = static_cast<uint8_t>(random.Below(64));
          put(s + 8, ToF16(scale()));
          put(s + 10, ToF16(0.001f * static_cast<float>(random.Below(15))));
          break;
        default:  // kQ6KPanels
          for (int i = 0; i < 8; ++i) s[i] = static_cast<uint8_t>(random.Below(256));
          put(s + 8, ToF16(scale()));
          break;
      }
      PutPanelRow(kind.format, kind.group, columns, row, part, values, panels->data());
    }
  }
  return {.format = kind.format,
          .data = panels->data(),
          .group_size = kind.group,
          .global_scale = kind.format == WeightFormat::kNvfp4Panels ? 0.0037f : 1.0f,
          .stored_k = columns,
          .owner = panels};
}

// A random weight, viewed from row row0 and column col0 in steps of row_step. Some rows and some
// blocks are zero.
WeightView MakeWeight(Random& random, const Kind& kind, int64_t n, int64_t k, int64_t row0 = 0,
                      int64_t row_step = 1, int64_t col0 = 0,
                      ActivationFormat activation = ActivationFormat::kInt8Group) {
  const int64_t rows = row0 + n * row_step, columns = CeilDiv(col0 + k, 32) * 32;
  const auto view = [&](WeightView w) {
    w.activation = activation;
    w.row0 = row0;
    w.row_step = row_step;
    w.col0 = col0;
    w.n = n;
    w.k = k;
    return w;
  };
  if (HasPanels(kind.format)) return view(MakePanels(random, kind, rows, columns));
  std::vector<float> values = random.Normal(rows * columns);
  for (int64_t i = 0; i < rows * columns; i += 32) {
    if (random.Below(8) == 0) std::fill_n(values.begin() + i, 32, 0.0f);
  }
  if (row0 < rows) std::fill_n(values.begin() + row0 * columns, columns, 0.0f);
  return view(Quantize(kind.format, values, rows, columns,
                       {.group_size = kind.group, .symmetric = kind.symmetric}));
}

struct Inputs {
  int64_t m, ldx;
  std::vector<float> x, bias;
};

// Rows of different magnitudes; the second is zero.
Inputs MakeInputs(Random& random, int64_t m, int64_t n, int64_t k) {
  Inputs in = {m, k + random.Below(3), {}, random.Normal(n)};
  in.x = random.Normal(m * in.ldx + 1);
  for (int64_t i = 0; i < m; ++i) {
    const float scale = i == 1 ? 0.0f : std::exp2(static_cast<float>(random.Below(20) - 10));
    for (int64_t j = 0; j < k; ++j) in.x[i * in.ldx + j] *= scale;
  }
  return in;
}

TEST_P(FourBitTest, LinearMultipliesRoundedRows) {
  Random random(1);
  ThreadPool pool(2);
  for (int round = 0; round < FewerIfSanitized(440, 4); ++round) {
    const Kind& kind = kKinds[round % std::size(kKinds)];
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
        MakeWeight(random, kind, n, k, row0, whole ? 1 : 1 + random.Below(2), col0,
                   token ? ActivationFormat::kInt8Token : ActivationFormat::kInt8Group);
    const Inputs in = MakeInputs(random, m, n, k);
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
        ASSERT_NEAR(y[i * ldy + j], want, bound) << What(kind, m, n, k, col0);
        written[i * ldy + j] = true;
      }
    }
    for (size_t i = 0; i < y.size(); ++i) {
      if (!written[i]) {
        ASSERT_EQ(y[i], before[i]) << What(kind, m, n, k, col0);
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
    const Kind& kind = kKinds[round % std::size(kKinds)];
    const int64_t m = random.Pick<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 20});
    const int64_t k = random.Pick<int64_t>({32, 96, 128, 160, 256, 290, 512, 1000, 1400});
    const int64_t n = random.Pick<int64_t>({1, 5, 16, 31, 40, 70});
    const WeightView w =
        HasPanels(kind.format)
            ? MakeWeight(random, kind, n, k, 16 * random.Below(3), 1, 128)
            : MakeWeight(random, kind, n, k, random.Below(5), 1 + random.Below(2), 128);
    EXPECT_EQ(cpu::InputRowFormatOf(w) == cpu::InputRowFormat::kInt8Blocks, kind.group != 48);
    if (kind.group == 48) continue;
    const Inputs in = MakeInputs(random, m, n, k);
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
    ASSERT_TRUE(SameBits(y, want)) << What(kind, m, n, k, 128);
  }
}

TEST_P(FourBitTest, ARowDoesNotDependOnItsBatch) {
  Random random(3);
  ThreadPool one(1), three(3);
  constexpr int64_t kRows = 37, kDepth = 416, kColumns = 150;
  for (const Kind& kind : kKinds) {
    const WeightView w = MakeWeight(random, kind, kColumns, kDepth);
    const Inputs in = MakeInputs(random, kRows, kColumns, kDepth);
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
            << What(kind, m, kColumns, kDepth, 0) << " first " << first;
      }
    }
  }
}

// Many rows use wide tiles of several panels, in batches, and parts of columns. Rows are gathered.
TEST_P(FourBitTest, ManyGatheredRowsHaveTheBitsOfRowsAlone) {
  if (!HasFourBitProducts(GetParam())) GTEST_SKIP() << "rounded rows are multiplied in float32";
  Random random(4);
  ThreadPool one(1), three(3);
  // 11 parts of columns, and 7 panels, the last of which has 4 rows.
  constexpr int64_t kHidden = 1300, kWidth = 100, kTokens = 70;
  for (const Kind& kind : kKinds) {
    if (!HasPanels(kind.format)) continue;
    const std::vector<ExpertWeights> experts = {
        {.gate = MakeWeight(random, kind, kWidth, kHidden),
         .up = MakeWeight(random, kind, kWidth, kHidden),
         .down = MakeWeight(random, kind, kHidden, kWidth)}};
    const std::vector<float> x = random.Normal(kTokens * kHidden);
    for (const int32_t rows : {9, 11, 13, 19, FewerIfSanitized(197, 8)}) {
      std::vector<int32_t> ids(rows);
      for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kTokens));
      const std::vector<int32_t> offsets = {0, rows}, single = {0, 1};
      std::vector<float> scratch(rows * kWidth), all(rows * kHidden), alone(kHidden);
      GroupedMlpParams p = {.x = x.data(),
                            .ldx = kHidden,
                            .row_ids = ids.data(),
                            .experts = experts,
                            .offsets = offsets,
                            .scratch = scratch.data(),
                            .out = all.data(),
                            .ldo = kHidden};
      GroupedMlp(p, three);
      p.offsets = single;
      p.out = alone.data();
      for (int32_t i = 0; i < rows; i += rows < 20 ? 1 : 7) {
        p.row_ids = &ids[i];
        GroupedMlp(p, one);
        ASSERT_TRUE(SameBits(alone.data(), &all[i * kHidden], kHidden))
            << What(kind, rows, kWidth, kHidden, 0) << " row " << i;
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

// The same exponents in panels. The first part has an ordinary exponent in the first rows, and the
// exponent of the second part in the others.
TEST_P(FourBitTest, BlockExponentsOfPanelsKeepTheirValues) {
  ThreadPool pool(1);
  constexpr int64_t kDepth = 2 * kPanelColumns;
  const uint8_t exponents[] = {0, 1, 2, 60, 127, 200, 254, 255};
  constexpr int64_t kCount = std::size(exponents), kColumns = 4 * kCount;
  const auto exponent = [&](int64_t j, int64_t part) {
    return part == 0 && j < kColumns / 2 ? uint8_t{100} : exponents[j % kCount];
  };
  std::vector<uint8_t> panels(PanelMatrixBytes(WeightFormat::kMxfp4Panels, 128, kColumns, kDepth));
  for (int64_t j = 0; j < kColumns; ++j) {
    for (int64_t part = 0; part < 2; ++part) {
      PanelRow row{};
      std::fill(std::begin(row.codes), std::end(row.codes), uint8_t{0x22});  // 1
      std::fill_n(row.scales, 4, exponent(j, part));
      PutPanelRow(WeightFormat::kMxfp4Panels, 128, kDepth, j, part, row, panels.data());
    }
  }
  for (const int64_t m : {1, 2, 4, 8, 9, 13}) {
    const std::vector<float> x(m * kDepth, 127.0f / 1024);
    std::vector<float> y(m * kColumns);
    Linear({.x = x.data(),
            .ldx = kDepth,
            .w = {.format = WeightFormat::kMxfp4Panels,
                  .data = panels.data(),
                  .group_size = 128,
                  .activation = ActivationFormat::kInt8Group,
                  .stored_k = kDepth,
                  .n = kColumns,
                  .k = kDepth},
            .y = y.data(),
            .ldy = kColumns,
            .m = m},
           pool);
    for (int64_t i = 0; i < m * kColumns; ++i) {
      const int64_t j = i % kColumns;
      if (exponent(j, 1) == 255) {
        EXPECT_TRUE(std::isnan(y[i])) << "rows " << m;
        continue;
      }
      const double sum = double{FromE8M0(exponent(j, 0))} + FromE8M0(exponent(j, 1));
      const double want = kPanelColumns * 127.0 / 1024 * sum;
      if (want > 3.4e38) continue;
      EXPECT_NEAR(y[i], want, 1e-4 * want) << int{exponent(j, 1)} << " rows " << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, FourBitTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
