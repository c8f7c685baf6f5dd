// Products with weights that need rounded input rows.
#include <cmath>
#include <limits>

#include "core/test_effort.h"
#include "kernels/cpu/driver.h"
#include "kernels/reference.h"
#include "kernels/testing.h"
#include "quant/activations.h"

namespace switchyard::kernels {
namespace {

class ActivationFormatTest : public IsaTest {};

constexpr ActivationFormat kRounding[] = {
    ActivationFormat::kFp8Group,  ActivationFormat::kFp8Token, ActivationFormat::kFp8Tensor,
    ActivationFormat::kInt8Token, ActivationFormat::kBFloat16, ActivationFormat::kInt8Group};

WeightView WithActivation(WeightView w, ActivationFormat format, float input_scale = 0.01f) {
  w.activation = format;
  w.input_scale = input_scale;
  return w;
}

std::string What(const WeightView& w) {
  return fmt::format("{} with {} rows", Name(w.format), Name(w.activation));
}

TEST_P(ActivationFormatTest, LinearMultipliesRoundedRows) {
  Random random(1);
  ThreadPool pool(2);
  for (const WeightFormat format : kAllFormats) {
    for (const ActivationFormat activation : kRounding) {
      const int64_t m = random.Pick<int64_t>({1, 3, 20}), n = 37, k = 300, ldx = k + 5;
      const WeightView w = WithActivation(random.Weight(format, n, k), activation);
      const std::vector<float> x = random.Normal(m * ldx);
      std::vector<float> rounded(m * k), y(m * n), want(m * n);
      for (int64_t i = 0; i < m; ++i)
        RoundActivations(activation, w.input_scale, &x[i * ldx], k, &rounded[i * k]);
      Linear({.x = x.data(), .ldx = ldx, .w = w, .y = y.data(), .ldy = n, .m = m}, pool);
      const WeightView plain = WithActivation(w, ActivationFormat::kNone);
      reference::Linear(
          {.x = rounded.data(), .ldx = k, .w = plain, .y = want.data(), .ldy = n, .m = m});
      std::vector<float> row(k);
      for (int64_t j = 0; j < n; ++j) {
        DequantizeRow(w, j, 0, k, row.data());
        const double norm = Norm(row.data(), k);
        for (int64_t i = 0; i < m; ++i) {
          const double bound = 20 * kEpsilon * (Norm(&rounded[i * k], k) * norm + 1);
          ASSERT_NEAR(y[i * n + j], want[i * n + j], bound) << What(w);
        }
      }
    }
  }
}

WeightView Int8Weight(Random& random, int64_t n, int64_t k, int64_t row0, int64_t row_step,
                      int64_t col0) {
  return WithActivation(random.Weight(WeightFormat::kInt8Channel, n, k, row0, row_step, col0),
                        ActivationFormat::kInt8Token);
}

TEST_P(ActivationFormatTest, Int8ProductsHaveTheReferencesBits) {
  Random random(2);
  ThreadPool pool(2);
  for (int round = 0; round < FewerIfSanitized(200, 4); ++round) {
    const int64_t m = random.Pick<int64_t>({0, 1, 2, 3, 6, 7, 13, 50, 65, 100});
    const int64_t k = random.Pick<int64_t>({1, 5, 31, 64, 65, 127, 300, 1024, 2069});
    const int64_t n = random.Pick<int64_t>({1, 3, 4, 5, 31, 33, 70});
    const WeightView w = Int8Weight(random, n, k, random.Below(9), 1 + random.Below(2),
                                    random.Pick<int64_t>({0, 0, 3, 64}));
    const int64_t ldx = k + random.Below(3), ldy = n + random.Below(3);
    const std::vector<float> x = random.Normal(m * ldx + 1), bias = random.Normal(n);
    std::vector<float> y = random.Normal(m * ldy + 1);
    std::vector<float> want = y;
    LinearParams p = {.x = x.data(),
                      .ldx = ldx,
                      .w = w,
                      .bias = round % 2 != 0 ? bias.data() : nullptr,
                      .y = y.data(),
                      .ldy = ldy,
                      .m = m,
                      .accumulate = round % 3 == 0};
    Linear(p, pool);
    p.y = want.data();
    reference::Linear(p);
    ASSERT_TRUE(SameBits(y, want)) << "m " << m << " n " << n << " k " << k;
  }
}

// Reduction order of AMX tiles (Intel's manual, TDPBF16PS). Each step of 32 columns of K adds one
// value: the sum of its even columns plus the sum of its odd columns.
float InTileOrder(const float* x, const float* w, int64_t k) {
  float sum = 0;
  for (int64_t begin = 0; begin < k; begin += 32) {
    float parts[2] = {};
    for (int64_t j = begin; j < std::min(k, begin + 32); ++j)
      parts[j % 2] = std::fma(x[j], w[j], parts[j % 2]);
    sum += parts[0] + parts[1];
  }
  return sum;
}

// Reduction order of vdpbf16ps: each of 16 lanes adds the second column of a pair before the first.
// The upper half of the lanes is then added to the lower half until one lane is left.
float InPairOrder(const float* x, const float* w, int64_t k) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  for (int64_t j = 0; j < k; j += 2) {
    float& sum = sums[j / 2 % kLanes];
    if (j + 1 < k) sum = std::fma(x[j + 1], w[j + 1], sum);
    sum = std::fma(x[j], w[j], sum);
  }
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

TEST_P(ActivationFormatTest, BFloat16ProductsAddInTheManualsOrder) {
  const bool tiles = GetParam() >= Isa::kAmx;
  if (!tiles && !(GetParam() == Isa::kAvx512 && cpu::HasAvx512BF16())) {
    GTEST_SKIP() << "rounded rows are multiplied in float32";
  }
  const auto sum = tiles ? InTileOrder : InPairOrder;
  Random random(8);
  ThreadPool pool(2);
  for (int round = 0; round < FewerIfSanitized(120, 4); ++round) {
    const int64_t m =
        random.Pick<int64_t>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 64, 70});
    const int64_t k = random.Pick<int64_t>({1, 5, 31, 32, 33, 64, 127, 300, 1024});
    const int64_t n = random.Pick<int64_t>({1, 3, 15, 16, 17, 33, 48, 64, 70});
    const int64_t col0 = random.Pick<int64_t>({0, 0, 3, 64}), ldx = k + random.Below(3);
    const WeightView w = WithActivation(
        random.Weight(WeightFormat::kBF16, n, k, random.Below(9), 1 + random.Below(2), col0),
        ActivationFormat::kBFloat16);
    const std::vector<float> x = random.Normal(m * ldx + 1), bias = random.Normal(n);
    std::vector<float> y = random.Normal(m * n), want = y, row(k), weights(k);
    const bool accumulate = round % 3 == 0;
    for (int64_t i = 0; i < m; ++i) {
      RoundActivations(ActivationFormat::kBFloat16, 1, &x[i * ldx], k, row.data());
      for (int64_t j = 0; j < n; ++j) {
        DequantizeRow(w, j, 0, k, weights.data());
        const float value = sum(row.data(), weights.data(), k) + bias[j];
        want[i * n + j] = accumulate ? want[i * n + j] + value : value;
      }
    }
    Linear({.x = x.data(),
            .ldx = ldx,
            .w = w,
            .bias = bias.data(),
            .y = y.data(),
            .ldy = n,
            .m = m,
            .accumulate = accumulate},
           pool);
    ASSERT_TRUE(SameBits(y, want)) << "m " << m << " n " << n << " k " << k;
  }
}

// A sum of -0 would become 0 if zeros were added to pad a line of weights.
TEST_P(ActivationFormatTest, ASumBelowTheSmallestKeepsItsSignInEveryBatch) {
  ThreadPool pool(1);
  constexpr int64_t kRows = 40, kColumns = 20;
  for (const int64_t k : {1, 2, 33, 40}) {
    const std::vector<uint16_t> weights(kColumns * k, 0x9e00);  // -6.8e-21
    const std::vector<float> x(kRows * k, 1e-30f);
    std::vector<float> all(kRows * kColumns), alone;
    LinearParams p = {.x = x.data(),
                      .ldx = k,
                      .w = {.format = WeightFormat::kBF16,
                            .data = weights.data(),
                            .activation = ActivationFormat::kBFloat16,
                            .stored_k = k,
                            .n = kColumns,
                            .k = k},
                      .y = all.data(),
                      .ldy = kColumns,
                      .m = kRows};
    Linear(p, pool);
    for (p.m = 1; p.m <= 10; ++p.m) {
      alone.resize(p.m * kColumns);
      p.y = alone.data();
      Linear(p, pool);
      EXPECT_TRUE(SameBits(alone.data(), all.data(), p.m * kColumns)) << p.m << " rows, k " << k;
    }
  }
}

TEST_P(ActivationFormatTest, Int8SumsReachTheEdgeOfInt32) {
  ThreadPool pool(1);
  constexpr int64_t kDepth = 1 << 17;
  const std::vector<int8_t> codes(kDepth, -128);
  const float scale = 1.0f;
  const std::vector<float> x(kDepth, 127.0f);
  float y = 0;
  Linear({.x = x.data(),
          .ldx = kDepth,
          .w = {.format = WeightFormat::kInt8Channel,
                .data = codes.data(),
                .scales = &scale,
                .activation = ActivationFormat::kInt8Token,
                .stored_k = kDepth,
                .n = 1,
                .k = kDepth},
          .y = &y,
          .ldy = 1,
          .m = 1},
         pool);
  EXPECT_EQ(y, -128.0f * 127.0f * kDepth);
}

TEST_P(ActivationFormatTest, ARowDoesNotDependOnItsBatch) {
  Random random(3);
  ThreadPool one(1), three(3);
  constexpr int64_t kRows = 70, kDepth = 200, kColumns = 70;
  for (const WeightFormat format : kAllFormats) {
    for (const ActivationFormat activation : kRounding) {
      const WeightView w = WithActivation(random.Weight(format, kColumns, kDepth), activation);
      std::vector<float> x = random.Normal(kRows * kDepth);
      for (int64_t j = 0; j < kDepth; ++j) x[7 * kDepth + j] *= 1000;  // one larger row
      std::vector<float> all(kRows * kColumns), again(all.size());
      LinearParams p = {
          .x = x.data(), .ldx = kDepth, .w = w, .y = all.data(), .ldy = kColumns, .m = kRows};
      Linear(p, one);
      p.y = again.data();
      Linear(p, three);
      EXPECT_TRUE(SameBits(all, again)) << What(w);
      for (const int64_t row : {0, 6, 7, 39, 69}) {
        p.x = &x[row * kDepth];
        p.m = 1;
        Linear(p, three);
        EXPECT_TRUE(SameBits(again.data(), &all[row * kColumns], kColumns)) << What(w) << row;
      }
    }
  }
}

// With a large K, weight panels are narrower. The packed panel of few rows of x must then fit in
// the same scratch.
TEST_P(ActivationFormatTest, DeepRowsDoNotDependOnTheirBatchEither) {
  Random random(9);
  ThreadPool pool(1);
  constexpr int64_t kRows = 65, kDepth = 8200, kColumns = 68;
  const std::vector<float> x = random.Normal(kRows * kDepth);
  for (const auto& [format, activation] :
       {std::pair(WeightFormat::kInt8Channel, ActivationFormat::kInt8Token),
        std::pair(WeightFormat::kBF16, ActivationFormat::kBFloat16)}) {
    const WeightView w = WithActivation(random.Weight(format, kColumns, kDepth), activation);
    std::vector<float> all(kRows * kColumns), some;
    LinearParams p = {
        .x = x.data(), .ldx = kDepth, .w = w, .y = all.data(), .ldy = kColumns, .m = kRows};
    Linear(p, pool);
    for (const int64_t m : {1, 9, 36, 64}) {
      some.assign(m * kColumns, 0);
      p.y = some.data();
      p.m = m;
      Linear(p, pool);
      EXPECT_TRUE(SameBits(some.data(), all.data(), m * kColumns)) << What(w) << m;
    }
  }
}

TEST_P(ActivationFormatTest, PartsOfAGroupKeepTheirOwnFormats) {
  Random random(4);
  ThreadPool pool(3);
  constexpr int64_t kRows = 5, kDepth = 96, kColumns = 40;
  const std::vector<float> x = random.Normal(kRows * kDepth);
  const WeightView int8 = Int8Weight(random, kColumns, kDepth, 0, 1, 0);
  const WeightView fp8 = random.Weight(WeightFormat::kFp8Channel, kColumns, kDepth);
  const std::vector<WeightView> weights = {
      fp8,
      int8,
      WithActivation(fp8, ActivationFormat::kFp8Tensor, 0.01f),
      WithActivation(fp8, ActivationFormat::kFp8Tensor, 0.013f),
      WithActivation(fp8, ActivationFormat::kInt8Token),
      int8,
      WithActivation(int8, ActivationFormat::kNone),
  };
  std::vector<std::vector<float>> outputs(weights.size(), std::vector<float>(kRows * kColumns));
  std::vector<LinearParams> parts;
  for (size_t i = 0; i < weights.size(); ++i) {
    parts.push_back({.x = x.data(),
                     .ldx = kDepth,
                     .w = weights[i],
                     .y = outputs[i].data(),
                     .ldy = kColumns,
                     .m = kRows});
  }
  LinearGroup(parts, pool);
  for (size_t i = 0; i < weights.size(); ++i) {
    std::vector<float> alone(kRows * kColumns);
    parts[i].y = alone.data();
    Linear(parts[i], pool);
    EXPECT_TRUE(SameBits(alone, outputs[i])) << i;
  }
  EXPECT_FALSE(SameBits(outputs[2], outputs[3]));
}

struct MixedExperts {
  std::vector<ExpertWeights> weights;

  void Add(Random& random, WeightFormat format, int64_t hidden, int64_t width, ActivationFormat in,
           ActivationFormat middle, float input_scale) {
    // Gate and up are slices of one matrix, so that their groups have the same size.
    const WeightView both =
        WithActivation(random.Weight(format, 2 * width, hidden), in, input_scale);
    weights.push_back(
        {.gate = both.Rows(0, width),
         .up = both.Rows(width, 2 * width),
         .down = WithActivation(random.Weight(format, hidden, width), middle, input_scale)});
  }
};

// Expert sets of one format, as in most checkpoints, and of mixed formats.
std::vector<MixedExperts> ExpertSets(Random& random, int64_t hidden, int64_t width) {
  using A = ActivationFormat;
  std::vector<MixedExperts> sets;
  for (const A activation : kRounding) {
    MixedExperts& set = sets.emplace_back();
    for (int e = 0; e < 4; ++e)
      set.Add(random, WeightFormat::kInt8Channel, hidden, width, activation, activation, 0.02f);
  }
  MixedExperts& halves = sets.emplace_back();
  for (int e = 0; e < 4; ++e)
    halves.Add(random, WeightFormat::kBF16, hidden, width, A::kBFloat16, A::kBFloat16, 1);
  for (const WeightFormat format :
       {WeightFormat::kInt4Group, WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    MixedExperts& four_bit = sets.emplace_back();
    for (int e = 0; e < 4; ++e)
      four_bit.Add(random, format, hidden, width, A::kInt8Group, A::kInt8Group, 1);
  }
  MixedExperts& mixed_four_bit = sets.emplace_back();
  mixed_four_bit.Add(random, WeightFormat::kInt4Group, hidden, width, A::kInt8Group, A::kNone, 1);
  mixed_four_bit.Add(random, WeightFormat::kInt4Group, hidden, width, A::kInt8Group, A::kInt8Group,
                     1);
  mixed_four_bit.Add(random, WeightFormat::kMxfp4, hidden, width, A::kInt8Group, A::kInt8Token, 1);
  mixed_four_bit.Add(random, WeightFormat::kInt8Channel, hidden, width, A::kInt8Token,
                     A::kInt8Group, 1);
  MixedExperts& mixed = sets.emplace_back();
  mixed.Add(random, WeightFormat::kFp8Channel, hidden, width, A::kFp8Tensor, A::kNone, 0.01f);
  mixed.Add(random, WeightFormat::kFp8Channel, hidden, width, A::kFp8Tensor, A::kFp8Group, 0.013f);
  mixed.Add(random, WeightFormat::kInt8Channel, hidden, width, A::kInt8Token, A::kInt8Token, 1);
  mixed.Add(random, WeightFormat::kBF16, hidden, width, A::kNone, A::kBFloat16, 1);
  return sets;
}

TEST_P(ActivationFormatTest, GroupedMlpRoundsInputAndMiddle) {
  Random random(5);
  ThreadPool pool(3);
  constexpr int64_t kHidden = 160, kWidth = 96, kTokens = 12, kRows = 30;
  const std::vector<int32_t> offsets = {0, 9, 9, 22, kRows};
  for (const MixedExperts& set : ExpertSets(random, kHidden, kWidth)) {
    const std::vector<float> x = random.Normal(kTokens * kHidden, 0.2f);
    std::vector<int32_t> row_ids(kRows);
    for (int32_t& id : row_ids) id = static_cast<int32_t>(random.Below(kTokens));
    std::vector<float> scratch(kRows * kWidth), out(kRows * kHidden), want(out.size());
    GroupedMlpParams p = {.x = x.data(),
                          .ldx = kHidden,
                          .row_ids = row_ids.data(),
                          .experts = set.weights,
                          .offsets = offsets,
                          .scratch = scratch.data(),
                          .out = out.data(),
                          .ldo = kHidden};
    GroupedMlp(p, pool);
    p.out = want.data();
    reference::GroupedMlp(p);
    // An intermediate value on the other side of a rounding boundary differs by a whole step.
    std::vector<float> difference(out.size());
    for (size_t i = 0; i < out.size(); ++i) difference[i] = out[i] - want[i];
    const auto count = static_cast<int64_t>(out.size());
    EXPECT_LT(Norm(difference.data(), count), 2e-3 * Norm(want.data(), count))
        << What(set.weights[0].gate);

    // Every fourth row is also computed alone, from a contiguous input.
    for (int64_t e = 0; e < 4; ++e) {
      for (int64_t r = offsets[e]; r < offsets[e + 1]; r += 4) {
        const std::vector<int32_t> one = {0, 1};
        std::vector<float> middle(kWidth), alone(kHidden);
        GroupedMlp({.x = &x[row_ids[r] * kHidden],
                    .ldx = kHidden,
                    .experts = {&set.weights[e], 1},
                    .offsets = one,
                    .scratch = middle.data(),
                    .out = alone.data(),
                    .ldo = kHidden},
                   pool);
        EXPECT_TRUE(SameBits(alone.data(), &out[r * kHidden], kHidden)) << e << " " << r;
      }
    }
  }
}

// Experts with more rows than a block of tiles. Their rows of x are adjacent, scattered, and
// repeated.
TEST_P(ActivationFormatTest, GatheredRowsHaveTheBitsOfRowsAlone) {
  using A = ActivationFormat;
  Random random(9);
  ThreadPool pool(2);
  constexpr int64_t kHidden = 150, kWidth = 70, kTokens = 90, kRows = 140;
  const std::vector<int32_t> offsets = {0, 75, 75, kRows};
  const std::pair<WeightFormat, A> kinds[] = {{WeightFormat::kInt8Channel, A::kInt8Token},
                                              {WeightFormat::kBF16, A::kBFloat16},
                                              {WeightFormat::kMxfp4, A::kInt8Group}};
  for (const auto& [format, activation] : kinds) {
    MixedExperts set;
    for (int e = 0; e < 3; ++e) set.Add(random, format, kHidden, kWidth, activation, activation, 1);
    const std::vector<float> x = random.Normal(kTokens * kHidden);
    std::vector<int32_t> row_ids(kRows);
    for (int32_t r = 0; r < kRows; ++r)
      row_ids[r] = r < 40 ? r : static_cast<int32_t>(random.Below(kTokens));
    std::vector<float> middle(kRows * kWidth), out(kRows * kHidden);
    GroupedMlp({.x = x.data(),
                .ldx = kHidden,
                .row_ids = row_ids.data(),
                .experts = set.weights,
                .offsets = offsets,
                .scratch = middle.data(),
                .out = out.data(),
                .ldo = kHidden},
               pool);
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<int32_t> one = {0, 1};
      std::vector<float> alone(kHidden);
      GroupedMlp({.x = &x[row_ids[r] * kHidden],
                  .ldx = kHidden,
                  .experts = {&set.weights[r < 75 ? 0 : 2], 1},
                  .offsets = one,
                  .scratch = middle.data(),
                  .out = alone.data(),
                  .ldo = kHidden},
                 pool);
      ASSERT_TRUE(SameBits(alone.data(), &out[r * kHidden], kHidden)) << Name(format) << " " << r;
    }
  }
}

TEST_P(ActivationFormatTest, UnreadRowsAreUnchanged) {
  Random random(6);
  ThreadPool pool(1);
  constexpr int64_t kSize = 64;
  MixedExperts set;
  set.Add(random, WeightFormat::kInt8Channel, kSize, kSize, ActivationFormat::kInt8Token,
          ActivationFormat::kInt8Token, 1);
  // One row in a sparse buffer, as in the low-latency layout; the other rows are uninitialised.
  const int32_t far = 1000, near = 0;
  const std::vector<float> row = random.Normal(kSize);
  std::vector<float> places((far + 1) * kSize, std::numeric_limits<float>::quiet_NaN());
  std::copy(row.begin(), row.end(), places.end() - kSize);
  const std::vector<int32_t> offsets = {0, 1};
  std::vector<float> middle(kSize), out(kSize), want(kSize);
  GroupedMlpParams p = {.x = places.data(),
                        .ldx = kSize,
                        .row_ids = &far,
                        .experts = set.weights,
                        .offsets = offsets,
                        .scratch = middle.data(),
                        .out = out.data(),
                        .ldo = kSize};
  GroupedMlp(p, pool);
  p.x = row.data();
  p.row_ids = &near;
  p.out = want.data();
  GroupedMlp(p, pool);
  EXPECT_TRUE(SameBits(out, want));
}

TEST_P(ActivationFormatTest, HeadLinearTakesItsInputAsItIs) {
  Random random(7);
  ThreadPool pool(1);
  constexpr int64_t kSize = 64;
  const WeightView w = Int8Weight(random, kSize, kSize, 0, 1, 0);
  const WeightView plain = WithActivation(w, ActivationFormat::kNone);
  const std::vector<float> x = random.Normal(kSize);
  for (const bool transposed : {false, true}) {
    std::vector<float> y(kSize), want(kSize);
    HeadLinearParams p = {.x = x.data(),
                          .ldx = kSize,
                          .w = {&w, 1},
                          .transposed = transposed,
                          .y = y.data(),
                          .ldy = kSize,
                          .m = 1};
    HeadLinear(p, pool);
    p.w = {&plain, 1};
    p.y = want.data();
    HeadLinear(p, pool);
    EXPECT_TRUE(SameBits(y, want));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, ActivationFormatTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
