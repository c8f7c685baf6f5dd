// Compares expert selection with a plain reimplementation, and tests hand-written cases for ties
// and limits.
#include "moe/router/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;
using Scoring = RouterConfig::Scoring;

TopK Select(const RouterConfig& config, const std::vector<float>& logits,
            const float* correction_bias = nullptr) {
  ThreadPool pool(2);
  TopK out;
  SelectExperts(config, logits.data(), logits.size() / config.num_logits(), correction_bias, &out,
                pool);
  return out;
}

// The reimplementation: computes in double, and sorts where the router scans. Supports only scores
// without ties.
TopK PlainSelect(const RouterConfig& c, const std::vector<float>& logits, const float* bias) {
  TopK out{.tokens = static_cast<int64_t>(logits.size()) / c.num_experts, .k = c.top_k};
  for (int64_t t = 0; t < out.tokens; ++t) {
    std::vector<double> score(logits.begin() + t * c.num_experts,
                              logits.begin() + (t + 1) * c.num_experts);
    double total = 0;
    for (const double s : score) total += std::exp(s);
    for (double& s : score) {
      if (c.scoring == Scoring::kSoftmax) s = std::exp(s) / total;
      if (c.scoring == Scoring::kSigmoid) s = 1 / (1 + std::exp(-s));
      if (c.scoring == Scoring::kSqrtSoftplus) s = std::sqrt(std::log(1 + std::exp(s)));
    }
    const auto choice = [&](int e) { return score[e] + (bias ? bias[e] : 0.0f); };

    const int size = c.num_experts / c.num_groups;
    const auto group_score = [&](int g) {
      std::vector<double> members;
      for (int e = g * size; e < (g + 1) * size; ++e) members.push_back(choice(e));
      std::ranges::sort(members, std::greater<>());
      return c.group_score == RouterConfig::GroupScore::kMax ? members[0] : members[0] + members[1];
    };
    std::vector<int> groups(c.num_groups);
    std::iota(groups.begin(), groups.end(), 0);
    std::ranges::sort(groups, std::greater<>(), group_score);
    groups.resize(c.topk_groups);

    std::vector<int> experts;
    for (const int g : groups)
      for (int e = g * size; e < (g + 1) * size; ++e) experts.push_back(e);
    std::ranges::sort(experts, std::greater<>(), choice);
    experts.resize(c.top_k);

    double sum = 0;
    const bool softmax_after = c.scoring == Scoring::kTopKSoftmax;
    const auto weight = [&](int e) { return softmax_after ? std::exp(score[e]) : score[e]; };
    for (const int e : experts) sum += weight(e);
    for (const int e : experts) {
      const double w = c.renormalize || softmax_after ? weight(e) / sum : weight(e);
      out.ids.push_back(e);
      out.weights.push_back(static_cast<float>(w * c.routed_scaling_factor));
    }
  }
  return out;
}

void ExpectPlain(const RouterConfig& config, bool with_bias) {
  kernels::Random random(3);
  const std::vector<float> logits = random.Normal(40 * config.num_experts, 1.5f);
  const std::vector<float> bias = random.Normal(config.num_experts, 0.3f);
  const float* correction = with_bias ? bias.data() : nullptr;
  const TopK got = Select(config, logits, correction);
  const TopK want = PlainSelect(config, logits, correction);
  EXPECT_EQ(got.tokens, 40);
  EXPECT_EQ(got.ids, want.ids);
  EXPECT_THAT(got.weights,
              Pointwise(FloatNear(1e-6f * config.routed_scaling_factor), want.weights));
}

TEST(RouterTest, Softmax) { ExpectPlain({.num_experts = 12, .top_k = 4}, false); }
TEST(RouterTest, SoftmaxRenormalized) {
  ExpectPlain({.num_experts = 12, .top_k = 4, .renormalize = true}, false);
}
TEST(RouterTest, TopKSoftmax) {
  ExpectPlain({.num_experts = 12, .top_k = 4, .scoring = Scoring::kTopKSoftmax}, false);
}
TEST(RouterTest, GroupLimitedGreedy) {
  ExpectPlain({.num_experts = 12,
               .top_k = 3,
               .num_groups = 4,
               .topk_groups = 2,
               .routed_scaling_factor = 16.0f},
              false);
}
TEST(RouterTest, SigmoidWithCorrectionBiasAndGroups) {
  ExpectPlain({.num_experts = 16,
               .top_k = 4,
               .scoring = Scoring::kSigmoid,
               .renormalize = true,
               .num_groups = 4,
               .topk_groups = 2,
               .group_score = RouterConfig::GroupScore::kTop2Sum,
               .routed_scaling_factor = 2.5f},
              true);
}

TEST(RouterTest, SqrtSoftplusWithCorrectionBias) {
  ExpectPlain({.num_experts = 16,
               .top_k = 4,
               .scoring = Scoring::kSqrtSoftplus,
               .renormalize = true,
               .routed_scaling_factor = 1.5f},
              true);
}

// e^x overflows in float32, and 1 + e^x is 1.
TEST(RouterTest, SqrtSoftplusOfLargeLogits) {
  const TopK out = Select({.num_experts = 4, .top_k = 4, .scoring = Scoring::kSqrtSoftplus},
                          {-50, 100, -200, 25});
  EXPECT_THAT(out.ids, ElementsAre(1, 3, 0, 2));
  EXPECT_FLOAT_EQ(out.weights[0], 10.0f);
  EXPECT_FLOAT_EQ(out.weights[1], 5.0f);
  EXPECT_NEAR(out.weights[2] / std::exp(-25.0), 1.0, 1e-5);
  EXPECT_EQ(out.weights[3], 0.0f);
}

RouterConfig ByToken(bool renormalize) {
  return {.num_experts = 9,
          .top_k = 3,
          .scoring = Scoring::kSqrtSoftplus,
          .renormalize = renormalize,
          .routed_scaling_factor = 1.5f,
          .by_token = true};
}

TEST(RouterTest, ExpertsOfATokenIdAreThoseOfTheTable) {
  constexpr int64_t kRows = 50, kTokens = 40, kStride = 7;
  kernels::Random random(5);
  ThreadPool pool(3);
  for (const bool renormalize : {false, true}) {
    const RouterConfig config = ByToken(renormalize);
    const std::vector<float> logits = random.Normal(kTokens * config.num_experts, 1.5f);
    std::vector<int32_t> table(kRows * config.top_k);
    std::vector<float> ids(kTokens * kStride, NAN);  // the other elements are not read
    for (int32_t& expert : table) expert = static_cast<int32_t>(random.Below(config.num_experts));
    for (int64_t t = 0; t < kTokens; ++t)
      ids[t * kStride] = static_cast<float>(random.Below(kRows));
    TopK out;
    LookUpExperts(config, {.token_experts = table.data(), .token_rows = kRows}, logits.data(),
                  kTokens, ids.data(), kStride, &out, pool);
    ASSERT_EQ(out.tokens, kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto* experts = table.data() + static_cast<int64_t>(ids[t * kStride]) * config.top_k;
      double scores[3], sum = 0;
      for (int j = 0; j < 3; ++j) {
        EXPECT_EQ(out.ids[t * 3 + j], experts[j]);
        scores[j] =
            std::sqrt(std::log1p(std::exp(double{logits[t * config.num_experts + experts[j]]})));
        sum += scores[j];
      }
      for (int j = 0; j < 3; ++j)
        EXPECT_NEAR(out.weights[t * 3 + j], 1.5 * scores[j] / (renormalize ? sum : 1.0), 3e-6);
      EXPECT_EQ(out.bad_experts[t], -1);
    }
  }
}

// As in SelectExperts, also if the expert is none of the token's.
TEST(RouterTest, ATokenIdWithAScoreThatIsNotFiniteIsMarked) {
  ThreadPool pool(1);
  const RouterConfig config = ByToken(true);
  const std::vector<int32_t> table = {1, 2, 3, 4, 5, 6};
  std::vector<float> logits(3 * config.num_experts, 1.0f);
  logits[config.num_experts + 8] = INFINITY;
  const std::vector<float> ids = {1, 0, 0};
  TopK out;
  LookUpExperts(config, {.token_experts = table.data(), .token_rows = 2}, logits.data(), 3,
                ids.data(), 1, &out, pool);
  EXPECT_THAT(out.bad_experts, ElementsAre(-1, 8, -1));
  EXPECT_THAT(out.ids, ElementsAre(4, 5, 6, 0, 1, 2, 1, 2, 3));
  EXPECT_TRUE(std::isnan(out.weights[3]));
  EXPECT_NEAR(out.weights[6], 0.5, 1e-6);
  LookUpExperts(config, {}, nullptr, 0, nullptr, 1, &out, pool);  // a rank without a router
  EXPECT_EQ(out.tokens, 0);
}

// The expected weights follow the formulas of the paper: the weight of an expert is its softmax
// over the experts whose logits are at most 2 · jitter below, relative to the larger magnitude.
TEST(RouterTest, SparseMixerWeighsEachExpertAgainstItsNearRivals) {
  const RouterConfig config{
      .num_experts = 5, .top_k = 2, .scoring = Scoring::kSparseMixer, .jitter = 0.1f};
  //           near 1: 2.0, 1.7; near 1.7: 1.7, 1.5. 0.1 and −3 are far.
  const TopK out = Select(config, {1.7f, 2.0f, 1.5f, 0.1f, -3.0f});
  EXPECT_THAT(out.ids, ElementsAre(1, 0));
  EXPECT_NEAR(out.weights[0], 1.0 / (1.0 + std::exp(-0.3)), 1e-6);
  EXPECT_NEAR(out.weights[1], 1.0 / (1.0 + std::exp(-0.2)), 1e-6);
  // The difference is relative to the larger magnitude, which here is that of the lower logit: (−1
  // + 1.2) / 1.2 < 0.2.
  const TopK negative = Select(config, {-1.0f, -1.2f, -1.3f, -9.0f, -9.0f});
  EXPECT_THAT(negative.ids, ElementsAre(0, 1));
  EXPECT_NEAR(negative.weights[0], 1.0 / (1.0 + std::exp(-0.2)), 1e-6);
  EXPECT_NEAR(negative.weights[1], 1.0 / (1.0 + std::exp(-0.1)), 1e-6);
  const TopK zeros = Select(config, {0, 0, 0, 0, 0});
  EXPECT_THAT(zeros.ids, ElementsAre(0, 1));
  EXPECT_THAT(zeros.weights, ElementsAre(0.2f, 0.25f));
}

// Both sigmoids are 1 in float32, so the selection must compare logits.
TEST(RouterTest, TopKSigmoidComparesLogits) {
  const RouterConfig config{.num_experts = 4, .top_k = 1, .scoring = Scoring::kTopKSigmoid};
  const TopK large = Select(config, {3, 40, 50, -1});
  EXPECT_THAT(large.ids, ElementsAre(2));
  EXPECT_THAT(large.weights, ElementsAre(1.0f));
  const TopK negative = Select(config, {-3, -2, -1, -4});
  EXPECT_THAT(negative.ids, ElementsAre(2));
  EXPECT_NEAR(negative.weights[0], 1.0 / (1.0 + std::exp(1.0)), 1e-7);
}

TEST(RouterTest, SlotsOfExpertsWithoutComputationAreRemoved) {
  const RouterConfig config{.num_experts = 3, .top_k = 3, .zero_experts = 2};
  const std::vector<float> bias = {0, 0, 0, 9, 0};
  TopK out = Select(config, {4, 0, 1, 2, 3, 5, 4, 3, 2, 1}, bias.data());
  EXPECT_THAT(out.ids, ElementsAre(3, 0, 4, 3, 0, 1));
  const std::vector<float> before = out.weights;
  std::vector<float> weights(2);
  RemoveZeroExperts(config, &out, weights.data());
  EXPECT_THAT(out.ids, ElementsAre(-1, 0, -1, -1, 0, 1));
  EXPECT_THAT(out.weights, ElementsAre(0, before[1], 0, 0, before[4], before[5]));
  EXPECT_THAT(weights, ElementsAre(before[0] + before[2], before[3]));
}

TEST(RouterTest, TiesGoToTheLowerId) {
  const TopK out = Select({.num_experts = 6, .top_k = 3}, {1, 2, 2, 0, 2, 1});
  EXPECT_THAT(out.ids, ElementsAre(1, 2, 4));
  const TopK groups =
      Select({.num_experts = 6, .top_k = 2, .num_groups = 3, .topk_groups = 1}, {1, 0, 1, 0, 1, 1});
  EXPECT_THAT(groups.ids, ElementsAre(0, 1));
}

TEST(RouterTest, CorrectionBiasChoosesButDoesNotWeigh) {
  const std::vector<float> bias = {0, 0, 5};
  const TopK out =
      Select({.num_experts = 3, .top_k = 1, .scoring = Scoring::kSigmoid}, {2, 1, 0}, bias.data());
  EXPECT_THAT(out.ids, ElementsAre(2));
  EXPECT_THAT(out.weights, ElementsAre(0.5f));
}

// The experts of the best groups are selected even if all their biased scores are negative.
TEST(RouterTest, ExpertsOutsideTheBestGroupsAreNeverChosen) {
  const std::vector<float> bias = {-3, -3, -4, -4};
  const TopK out = Select({.num_experts = 4,
                           .top_k = 2,
                           .scoring = Scoring::kSigmoid,
                           .num_groups = 2,
                           .topk_groups = 1},
                          {0, 0, 0, 0}, bias.data());
  EXPECT_THAT(out.ids, ElementsAre(0, 1));
}

// The request of a token with scores that are not finite ends. Other tokens of the batch are
// unaffected.
TEST(RouterTest, ScoresThatAreNotFiniteAreMarkedByTokenAndExpert) {
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kTopKSoftmax}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      const TopK out = Select({.num_experts = 3, .top_k = 2, .scoring = scoring},
                              {1, 2, 3, 1, bad, NAN, 3, 2, 1});
      EXPECT_THAT(out.bad_experts, ElementsAre(-1, 1, -1));
      EXPECT_THAT(out.ids, ElementsAre(2, 1, 0, 1, 0, 1));
      for (int slot = 0; slot < 6; ++slot)
        EXPECT_EQ(std::isnan(out.weights[slot]), slot == 2 || slot == 3) << slot;
    }
  }
}

TEST(RouterTest, ACorrectionBiasThatIsNotFiniteIsMarked) {
  const std::vector<float> bias = {0, NAN, 0};
  const TopK out =
      Select({.num_experts = 3, .top_k = 1, .scoring = Scoring::kSigmoid}, {1, 2, 3}, bias.data());
  EXPECT_THAT(out.bad_experts, ElementsAre(1));
  EXPECT_TRUE(std::isnan(out.weights[0]));
}

}  // namespace
}  // namespace switchyard
