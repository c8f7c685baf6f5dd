#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

class GroupedMlpTest : public IsaTest {};

// Experts with gate in the even rows and up in the odd rows of one stored matrix.
struct Experts {
  std::vector<ExpertWeights> weights;
  std::vector<std::vector<float>> biases;

  Experts(Random& random, WeightFormat format, int64_t count, int64_t hidden, int64_t width,
          bool with_bias) {
    for (int64_t e = 0; e < count; ++e) {
      const WeightView both = random.Weight(format, 2 * width, hidden);
      ExpertWeights w = {.gate = both, .up = both, .down = random.Weight(format, hidden, width)};
      w.gate.row_step = w.up.row_step = 2;
      w.gate.n = w.up.n = width;
      w.up.row0 = 1;
      if (with_bias) {
        w.gate_bias = biases.emplace_back(random.Normal(width)).data();
        w.up_bias = biases.emplace_back(random.Normal(width)).data();
        w.down_bias = biases.emplace_back(random.Normal(hidden)).data();
      }
      weights.push_back(std::move(w));
    }
  }
};

TEST_P(GroupedMlpTest, MatchesReference) {
  Random random(1);
  ThreadPool pool(2);
  for (const WeightFormat format : kAllFormats) {
    for (const Activation activation : {Activation::kSwiGlu, Activation::kSwiGluClamped,
                                        Activation::kSwiGluLimited, Activation::kRelu2}) {
      constexpr int64_t kHidden = 96, kWidth = 160, kTokens = 40;
      Experts experts(random, format, 5, kHidden, kWidth, activation != Activation::kSwiGlu);
      for (ExpertWeights& w : experts.weights) {
        if (activation != Activation::kRelu2) break;
        w.gate = w.up;
        w.gate_bias = w.up_bias;
      }
      // Experts with no rows, one row, few rows and many rows.
      const std::vector<int32_t> offsets = {0, 0, 1, 5, 5, 60};
      const std::vector<float> x = random.Normal(kTokens * kHidden, 0.3f);
      std::vector<int32_t> row_ids(60);
      for (int32_t& id : row_ids) id = static_cast<int32_t>(random.Below(kTokens));
      std::vector<float> scratch(60 * kWidth), out(60 * kHidden), expected(out.size());
      GroupedMlpParams p = {.x = x.data(),
                            .ldx = kHidden,
                            .row_ids = row_ids.data(),
                            .experts = experts.weights,
                            .offsets = offsets,
                            .activation = activation,
                            .limit = 1.5f,  // less than some elements
                            .scratch = scratch.data(),
                            .out = out.data(),
                            .ldo = kHidden};
      GroupedMlp(p, pool);
      p.out = expected.data();
      reference::GroupedMlp(p);
      const double scale = Norm(expected.data(), static_cast<int64_t>(expected.size())) /
                           std::sqrt(static_cast<double>(expected.size()));
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], 200 * kEpsilon * scale) << Name(format) << " " << i;
      }
    }
  }
}

TEST_P(GroupedMlpTest, RowDoesNotDependOnCompanyOrThreads) {
  Random random(2);
  ThreadPool one(1), three(3);
  for (const WeightFormat format : kAllFormats) {
    constexpr int64_t kHidden = 64, kWidth = 288, kRows = 64;
    const Experts experts(random, format, 2, kHidden, kWidth, false);
    const std::vector<float> x = random.Normal(kRows * kHidden);
    std::vector<float> scratch(kRows * kWidth), all(kRows * kHidden), again(all.size());
    const std::vector<int32_t> offsets = {0, 30, 64};
    GroupedMlpParams p = {.x = x.data(),
                          .ldx = kHidden,
                          .experts = experts.weights,
                          .offsets = offsets,
                          .scratch = scratch.data(),
                          .out = all.data(),
                          .ldo = kHidden};
    GroupedMlp(p, one);
    p.out = again.data();
    GroupedMlp(p, three);
    EXPECT_TRUE(SameBits(all, again));
    for (const int32_t row : {0, 29, 30, 63}) {
      const std::vector<int32_t> alone =
          row < 30 ? std::vector<int32_t>{0, 1, 1} : std::vector<int32_t>{0, 0, 1};
      p.offsets = alone;
      p.row_ids = &row;
      p.out = again.data();
      GroupedMlp(p, three);
      EXPECT_TRUE(SameBits(again.data(), all.data() + row * kHidden, kHidden))
          << Name(format) << " row " << row;
    }
  }
}

// Compares the down products of all experts in one call with those of one call for each expert.
TEST_P(GroupedMlpTest, SeparateProductsHaveTheSameBits) {
  Random random(3);
  ThreadPool pool(2);
  for (const WeightFormat format : kAllFormats) {
    constexpr int64_t kHidden = 96, kWidth = 160, kRows = 70;
    const Experts experts(random, format, 4, kHidden, kWidth, true);
    const std::vector<float> x = random.Normal(kRows * kHidden);
    const std::vector<int32_t> offsets = {0, 33, 33, 34, kRows};
    std::vector<float> scratch(kRows * kWidth), want(kRows * kHidden), out(want.size());
    GroupedMlpParams p = {.x = x.data(),
                          .ldx = kHidden,
                          .experts = experts.weights,
                          .offsets = offsets,
                          .scratch = scratch.data(),
                          .out = want.data(),
                          .ldo = kHidden};
    GroupedMlp(p, pool);
    p.out = out.data();
    GroupedGateUp(p, pool);
    GroupedDown(p, pool);
    EXPECT_TRUE(SameBits(out, want)) << Name(format);
    out.assign(out.size(), NAN);
    GroupedGateUp(p, pool);
    for (int e = 0; e < 4; ++e) {
      const std::vector<int32_t> own = {0, offsets[e + 1] - offsets[e]};
      GroupedDown({.experts = p.experts.subspan(e, 1),
                   .offsets = own,
                   .scratch = scratch.data() + offsets[e] * kWidth,
                   .out = out.data() + offsets[e] * kHidden,
                   .ldo = kHidden},
                  pool);
    }
    EXPECT_TRUE(SameBits(out, want)) << Name(format) << ", one expert after the other";
  }
}

TEST_P(GroupedMlpTest, SwiGluSurvivesLargeGates) {
  ThreadPool pool(1);
  const std::vector<float> one = {1.0f}, huge = {200.0f}, low = {-200.0f};
  ExpertWeights w = {.up = Quantize(WeightFormat::kF32, one, 1, 1),
                     .down = Quantize(WeightFormat::kF32, one, 1, 1)};
  const std::vector<int32_t> offsets = {0, 1};
  float scratch = 0, out = 0;
  for (const auto& gate : {huge, low}) {
    w.gate = Quantize(WeightFormat::kF32, gate, 1, 1);
    GroupedMlp({.x = one.data(),
                .ldx = 1,
                .experts = {&w, 1},
                .offsets = offsets,
                .scratch = &scratch,
                .out = &out,
                .ldo = 1},
               pool);
    EXPECT_NEAR(out, gate[0] > 0 ? 200.0f : 0.0f, 1e-5);
  }
}

// Of a gate, only large values are limited.
TEST_P(GroupedMlpTest, LimitsOfGatesAndValues) {
  ThreadPool pool(1);
  constexpr int64_t kWidth = 37;
  const std::vector<float> one = {1.0f};
  for (const float gate : {3.0f, 1.0f, -3.0f}) {
    for (const float up : {5.0f, 0.5f, -5.0f}) {
      const ExpertWeights w = {
          .gate = Quantize(WeightFormat::kF32, std::vector<float>(kWidth, gate), kWidth, 1),
          .up = Quantize(WeightFormat::kF32, std::vector<float>(kWidth, up), kWidth, 1),
          .down = Quantize(WeightFormat::kF32, std::vector<float>(kWidth, 1.0f), 1, kWidth)};
      const std::vector<int32_t> offsets = {0, 1};
      std::vector<float> scratch(kWidth);
      float out = 0;
      GroupedMlp({.x = one.data(),
                  .ldx = 1,
                  .experts = {&w, 1},
                  .offsets = offsets,
                  .activation = Activation::kSwiGluLimited,
                  .limit = 2.0f,
                  .scratch = scratch.data(),
                  .out = &out,
                  .ldo = 1},
                 pool);
      const double g = std::min(gate, 2.0f), u = std::clamp(up, -2.0f, 2.0f);
      EXPECT_NEAR(out, kWidth * g / (1.0 + std::exp(-g)) * u, 1e-4) << gate << " " << up;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, GroupedMlpTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
