#include "moe/cuda/router/select_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "moe/cuda/testing.h"
#include "moe/router/router.h"
#include "moe/router/router_fault.h"

namespace switchyard::cuda {
namespace {

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> bad_experts;  // as in TopK
  std::vector<float> zero_weights;   // [tokens] if there are experts without computation
};

// Returns the experts of the faults. All faults must be in layer `layer`.
std::vector<int32_t> ExpertsOf(const std::vector<int32_t>& faults, int layer) {
  std::vector<int32_t> experts(faults.size(), -1);
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i] == 0) continue;
    EXPECT_EQ(LayerOfFault(faults[i]), layer);
    experts[i] = ExpertOfFault(faults[i]);
  }
  return experts;
}

Choice OnDevice(const RouterConfig& config, const std::vector<float>& logits, int64_t tokens,
                const std::vector<float>& bias, const std::vector<int32_t>& places = {}) {
  const DeviceMemory device_logits = ToDevice(logits), device_bias = ToDevice(bias);
  const DeviceMemory device_places = ToDevice(places);
  const DeviceMemory ids(tokens * config.top_k * 4), weights(tokens * config.top_k * 4);
  const int64_t zero_tokens = config.zero_experts > 0 ? tokens : 0;
  const DeviceMemory zero_weights = ToDevice(std::vector<float>(zero_tokens, NAN));
  constexpr int kLayer = 5;
  std::vector<int32_t> index(tokens);  // records in reverse order
  std::iota(index.rbegin(), index.rend(), 0);
  const DeviceMemory device_index = ToDevice(index), records(tokens * 4);
  Check(SelectExpertsOnDevice({.logits = device_logits.as<float>(),
                               .correction_bias = bias.empty() ? nullptr : device_bias.as<float>(),
                               .tokens = tokens,
                               .num_experts = config.num_experts,
                               .top_k = config.top_k,
                               .zero_experts = config.zero_experts,
                               .scoring = static_cast<int>(config.scoring),
                               .renormalize = config.renormalize,
                               .num_groups = config.num_groups,
                               .topk_groups = config.topk_groups,
                               .top2_sum = config.group_score == RouterConfig::GroupScore::kTop2Sum,
                               .scaling = config.routed_scaling_factor,
                               .jitter = config.jitter,
                               .places = places.empty() ? nullptr : device_places.as<int32_t>(),
                               .ids = ids.as<int32_t>(),
                               .weights = weights.as<float>(),
                               .zero_weights = zero_weights.as<float>(),
                               .faults = {.records = records.as<int32_t>(),
                                          .index = device_index.as<int32_t>(),
                                          .end = tokens,
                                          .of_expert_0 = FaultOf(kLayer, 0)}},
                              nullptr),
        "choice of experts");
  std::vector<int32_t> faults = ToHost<int32_t>(records, tokens);
  std::ranges::reverse(faults);
  return {ToHost<int32_t>(ids, tokens * config.top_k),
          ToHost<float>(weights, tokens * config.top_k), ExpertsOf(faults, kLayer),
          ToHost<float>(zero_weights, zero_tokens)};
}

void ExpectAsOnCpu(const RouterConfig& config, const std::vector<float>& logits, int64_t tokens,
                   const std::vector<float>& bias) {
  ThreadPool pool(1);
  TopK want;
  SelectExperts(config, logits.data(), tokens, bias.empty() ? nullptr : bias.data(), &want, pool);
  std::vector<float> zero_weights(config.zero_experts > 0 ? tokens : 0);
  if (config.zero_experts > 0) RemoveZeroExperts(config, &want, zero_weights.data());
  const Choice got = OnDevice(config, logits, tokens, bias);
  EXPECT_EQ(got.ids, want.ids);
  for (size_t t = 0; t < zero_weights.size(); ++t)
    ASSERT_NEAR(got.zero_weights[t], zero_weights[t], 1e-6 * (1 + zero_weights[t])) << t;
  EXPECT_EQ(got.bad_experts, want.bad_experts);
  for (size_t i = 0; i < want.weights.size(); ++i) {
    ASSERT_EQ(std::isnan(got.weights[i]), std::isnan(want.weights[i])) << i;
    if (std::isnan(want.weights[i])) continue;
    ASSERT_NEAR(got.weights[i], want.weights[i], 1e-6 * (1 + std::abs(want.weights[i]))) << i;
  }
}

// Rounds to multiples of `step`, so that scores are either equal or differ by more than the
// rounding of exp.
std::vector<float> OnGrid(std::vector<float> values, float step) {
  for (float& v : values) v = std::round(v / step) * step;
  return values;
}

RouterConfig RandomRouter(kernels::Random& random) {
  RouterConfig config;
  config.num_groups = random.Pick({1, 1, 2, 4, 8, 32});
  config.num_experts =
      config.num_groups * static_cast<int>(1 + random.Below(512 / config.num_groups));
  config.topk_groups = static_cast<int>(1 + random.Below(config.num_groups));
  config.top_k = static_cast<int>(1 + random.Below(std::min(32, config.num_experts)));
  config.scoring =
      random.Pick({RouterConfig::Scoring::kSoftmax, RouterConfig::Scoring::kSigmoid,
                   RouterConfig::Scoring::kTopKSoftmax, RouterConfig::Scoring::kSqrtSoftplus});
  config.renormalize = random.Below(2) == 0;
  config.group_score =
      random.Pick({RouterConfig::GroupScore::kMax, RouterConfig::GroupScore::kTop2Sum});
  config.routed_scaling_factor = random.Pick({1.0f, 2.5f});
  return config;
}

TEST(SelectExpertsOnDevice, ChoosesAsTheCpuDoes) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(1);
  for (int round = 0; round < 60; ++round) {
    const RouterConfig config = RandomRouter(random);
    const int64_t tokens = random.Below(40);
    const auto logits = OnGrid(random.Normal(tokens * config.num_experts), 1.0f / 64);
    const auto bias = random.Below(2) == 0 ? OnGrid(random.Normal(config.num_experts, 0.2f), 0.125f)
                                           : std::vector<float>();
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ", experts " << config.num_experts << " groups "
                 << config.num_groups << " of " << config.topk_groups << " top " << config.top_k);
    ExpectAsOnCpu(config, logits, tokens, bias);
  }
}

TEST(SelectExpertsOnDevice, SparseMixerChoosesAsTheCpuDoes) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(4);
  for (int round = 0; round < 60; ++round) {
    RouterConfig config = {.num_experts = static_cast<int>(2 + random.Below(511)),
                           .top_k = 2,
                           .scoring = RouterConfig::Scoring::kSparseMixer,
                           .renormalize = random.Below(2) == 0,
                           .routed_scaling_factor = random.Pick({1.0f, 2.5f}),
                           .jitter = random.Pick({0.0f, 0.01f, 0.1f, 1.0f})};
    if (round % 4 == 0) config.num_experts = random.Pick({2, 16, 32, 64, 512});
    const int64_t tokens = random.Below(40);
    auto logits = OnGrid(random.Normal(tokens * config.num_experts), 1.0f / 64);
    for (float& logit : logits) logit -= random.Pick({0.0f, 0.0f, 5.0f});  // also no positive ones
    if (round % 5 == 0 && tokens > 0)
      logits[random.Below(std::ssize(logits))] = random.Pick({NAN, INFINITY, -INFINITY});
    SCOPED_TRACE(::testing::Message() << "round " << round << ", experts " << config.num_experts
                                      << " jitter " << config.jitter);
    ExpectAsOnCpu(config, logits, tokens, {});
  }
}

TEST(SelectExpertsOnDevice, TopKSigmoidChoosesAsTheCpuDoes) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(6);
  for (int round = 0; round < 30; ++round) {
    const RouterConfig config = {.num_experts = static_cast<int>(4 + random.Below(509)),
                                 .top_k = static_cast<int>(1 + random.Below(4)),
                                 .scoring = RouterConfig::Scoring::kTopKSigmoid};
    const int64_t tokens = random.Below(40);
    auto logits = OnGrid(random.Normal(tokens * config.num_experts, 20.0f), 1.0f / 64);
    if (round % 5 == 0 && tokens > 0)
      logits[random.Below(std::ssize(logits))] = random.Pick({NAN, INFINITY, -INFINITY});
    SCOPED_TRACE(::testing::Message() << "round " << round << ", experts " << config.num_experts);
    ExpectAsOnCpu(config, logits, tokens, {});
  }
}

TEST(SelectExpertsOnDevice, LooksUpExpertsByTokenIdAsTheCpuDoes) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(8);
  ThreadPool pool(1);
  for (int round = 0; round < 30; ++round) {
    const RouterConfig config = {.num_experts = static_cast<int>(8 + random.Below(505)),
                                 .top_k = static_cast<int>(1 + random.Below(8)),
                                 .scoring = RouterConfig::Scoring::kSqrtSoftplus,
                                 .renormalize = random.Below(2) == 0,
                                 .routed_scaling_factor = 1.5f,
                                 .by_token = true};
    constexpr int64_t kIds = 50, kStride = 3;  // an id is the last element of a row
    const int64_t tokens = random.Below(40);
    std::vector<int32_t> table, want_places;
    for (int64_t id = 0; id < kIds; ++id) {
      const std::vector<int32_t> experts = random.Shuffled(config.num_experts);
      table.insert(table.end(), experts.begin(), experts.begin() + config.top_k);
    }
    std::vector<float> logits = random.Normal(tokens * config.num_experts, 10.0f),
                       ids(tokens * kStride);
    for (int64_t t = 0; t < tokens; ++t)
      ids[t * kStride + kStride - 1] = static_cast<float>(random.Below(kIds));
    if (round % 5 == 0 && tokens > 0)
      logits[random.Below(std::ssize(logits))] = random.Pick({NAN, INFINITY, -INFINITY});
    TopK want;
    LookUpExperts(config, {.token_experts = table.data(), .token_rows = kIds}, logits.data(),
                  tokens, ids.data() + kStride - 1, kStride, &want, pool);
    const std::vector<int32_t> places = random.Shuffled(config.num_experts);
    const DeviceMemory device_logits = ToDevice(logits), device_table = ToDevice(table);
    const DeviceMemory device_ids = ToDevice(ids), device_places = ToDevice(places);
    const DeviceMemory logical(tokens * config.top_k * 4), placed(logical.bytes());
    const DeviceMemory weights(logical.bytes());
    Check(SelectExpertsOnDevice({.logits = device_logits.as<float>(),
                                 .tokens = tokens,
                                 .num_experts = config.num_experts,
                                 .top_k = config.top_k,
                                 .scoring = static_cast<int>(config.scoring),
                                 .renormalize = config.renormalize,
                                 .scaling = config.routed_scaling_factor,
                                 .token_experts = device_table.as<int32_t>(),
                                 .token_rows = kIds,
                                 .token_ids = device_ids.as<float>() + kStride - 1,
                                 .token_stride = kStride,
                                 .places = device_places.as<int32_t>(),
                                 .logical = logical.as<int32_t>(),
                                 .ids = placed.as<int32_t>(),
                                 .weights = weights.as<float>()},
                                nullptr),
          "experts by token id");
    EXPECT_EQ(ToHost<int32_t>(logical, tokens * config.top_k), want.ids);
    for (const int32_t id : want.ids) want_places.push_back(places[id]);
    EXPECT_EQ(ToHost<int32_t>(placed, tokens * config.top_k), want_places);
    const std::vector<float> got = ToHost<float>(weights, tokens * config.top_k);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::isnan(got[i]), std::isnan(want.weights[i])) << i;
      if (std::isnan(got[i])) continue;
      ASSERT_NEAR(got[i], want.weights[i], 2e-6 * (1 + got[i])) << i;
    }
  }
}

TEST(SelectExpertsOnDevice, RefusesATableOfTokensWithOtherScores) {
  const int32_t table[2] = {};
  const float ids[1] = {};
  SelectExpertsParams p = {.tokens = 1,
                           .num_experts = 8,
                           .top_k = 2,
                           .scoring = kSqrtSoftplusScoring,
                           .token_experts = table,
                           .token_rows = 1,
                           .token_ids = ids};
  EXPECT_TRUE(SelectsExperts(p));
  p.scoring = 1;
  EXPECT_FALSE(SelectsExperts(p));
  p.scoring = kSqrtSoftplusScoring;
  p.correction_bias = ids;
  EXPECT_FALSE(SelectsExperts(p));
}

// Up to the sizes of LongCat-Flash: 512 experts and 256 without computation.
TEST(SelectExpertsOnDevice, ExpertsWithoutComputationHaveNoSlots) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(9);
  for (int round = 0; round < 40; ++round) {
    RouterConfig config = {
        .num_experts = static_cast<int>(32 + random.Below(481)),
        .top_k = static_cast<int>(1 + random.Below(32)),
        .zero_experts = static_cast<int>(1 + random.Below(256)),
        .scoring = random.Pick({RouterConfig::Scoring::kSoftmax, RouterConfig::Scoring::kSigmoid}),
        .renormalize = random.Below(2) == 0,
        .routed_scaling_factor = 6.0f};
    if (round % 4 == 0) config.num_experts = 512, config.zero_experts = 256;
    const int64_t tokens = random.Below(40), all = config.num_logits();
    auto logits = OnGrid(random.Normal(tokens * all), 1.0f / 64);
    if (round % 5 == 0 && tokens > 0)
      logits[random.Below(std::ssize(logits))] = random.Pick({NAN, INFINITY, -INFINITY});
    const auto bias =
        random.Below(2) == 0 ? OnGrid(random.Normal(all, 0.2f), 0.125f) : std::vector<float>();
    SCOPED_TRACE(::testing::Message() << "round " << round << ", experts " << config.num_experts
                                      << " and " << config.zero_experts << " top " << config.top_k);
    ExpectAsOnCpu(config, logits, tokens, bias);
  }
}

TEST(SelectExpertsOnDevice, RefusesExpertsWithoutComputationInGroups) {
  float weights[1] = {};
  SelectExpertsParams p = {.tokens = 1, .num_experts = 8, .top_k = 2, .zero_experts = 4};
  EXPECT_EQ(SelectExpertsOnDevice(p, nullptr), cudaErrorInvalidValue);  // no zero_weights
  p.zero_weights = weights;
  EXPECT_TRUE(SelectsExperts(p));
  p.num_groups = 2;
  EXPECT_FALSE(SelectsExperts(p));
  p.num_groups = 1;
  p.zero_experts = kMaxRouterLogits;
  EXPECT_FALSE(SelectsExperts(p));
}

TEST(ScaleInputRowsTest, WeightsBecomeOneUnlessTheyAreNanOrZero) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kTokens = 5, kWidth = 1030;
  const std::vector<float> x = kernels::Random(3).Normal(kTokens * kWidth);
  const std::vector<float> weights = {0.25f, NAN, 1.0f, 0.0f, 0.7f};
  const DeviceMemory from = ToDevice(x), factors = ToDevice(weights), to(x.size() * sizeof(float));
  Check(ScaleInputRows({.x = from.as<float>(),
                        .tokens = kTokens,
                        .width = kWidth,
                        .weights = factors.as<float>(),
                        .y = to.as<float>()},
                       nullptr),
        "scaling of rows");
  const std::vector<float> y = ToHost<float>(to, kTokens * kWidth);
  for (int64_t i = 0; i < kTokens * kWidth; ++i) {
    const float want = x[i] * weights[i / kWidth];
    ASSERT_TRUE(y[i] == want || (std::isnan(y[i]) && std::isnan(want))) << i;
  }
  const std::vector<float> left = ToHost<float>(factors, kTokens);
  EXPECT_TRUE(std::isnan(left[1]));
  EXPECT_EQ(left[0], 1.0f);
  EXPECT_EQ(left[2], 1.0f);
  EXPECT_EQ(left[3], 0.0f);
  EXPECT_EQ(left[4], 1.0f);
  EXPECT_EQ(ScaleInputRows({}, nullptr), cudaSuccess);
}

TEST(SelectExpertsOnDevice, RefusesSparseMixerWithGroupsOrABias) {
  SelectExpertsParams p = {
      .tokens = 1, .num_experts = 8, .top_k = 2, .scoring = kSparseMixerScoring};
  EXPECT_TRUE(SelectsExperts(p));
  p.num_groups = 2;
  EXPECT_EQ(SelectExpertsOnDevice(p, nullptr), cudaErrorInvalidValue);
  const float bias[8] = {};
  p.num_groups = 1;
  p.correction_bias = bias;
  EXPECT_EQ(SelectExpertsOnDevice(p, nullptr), cudaErrorInvalidValue);
}

TEST(SelectExpertsOnDevice, TiesGoToTheLowerId) {
  SKIP_WITHOUT_GPU();
  const RouterConfig config = {.num_experts = 100, .top_k = 7};
  const Choice got = OnDevice(config, std::vector<float>(200, 0.5f), 2, {});
  for (int i = 0; i < 14; ++i) EXPECT_EQ(got.ids[i], i % 7);
}

// Weights must be NaN; ExpectAsOnCpu treats NaN weights as equal.
TEST(SelectExpertsOnDevice, ScoresThatAreNotFiniteGiveNanWeights) {
  SKIP_WITHOUT_GPU();
  for (const auto scoring : {RouterConfig::Scoring::kSigmoid, RouterConfig::Scoring::kTopKSoftmax,
                             RouterConfig::Scoring::kSoftmax}) {
    const RouterConfig config = {
        .num_experts = 70, .top_k = 3, .scoring = scoring, .renormalize = true};
    std::vector<float> logits(140, NAN);
    logits[66] = 1.0f;
    logits[5] = -2.0f;
    ExpectAsOnCpu(config, logits, 2, {});
  }
}

TEST(SelectExpertsOnDevice, ScoresThatAreNotFiniteAreRecordedByTokenAndExpert) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(2);
  for (int round = 0; round < 60; ++round) {
    const RouterConfig config = RandomRouter(random);
    const int64_t tokens = 1 + random.Below(40);
    auto logits = OnGrid(random.Normal(tokens * config.num_experts), 1.0f / 64);
    for (int64_t bad = random.Below(tokens + 1); bad > 0; --bad)
      logits[random.Below(std::ssize(logits))] = random.Pick({NAN, INFINITY, -INFINITY});
    std::vector<float> bias(round % 4 == 0 ? config.num_experts : 0, 0.0f);
    if (round % 8 == 0) bias[random.Below(config.num_experts)] = random.Pick({NAN, INFINITY});
    SCOPED_TRACE(::testing::Message() << "round " << round << ", experts " << config.num_experts
                                      << " tokens " << tokens);
    ExpectAsOnCpu(config, logits, tokens, bias);
  }
}

TEST(SelectExpertsOnDevice, OnlyTokensOfTheRangeAreRecordedAndEarlierFaultsStay) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kTokens = 6;
  const DeviceMemory logits = ToDevice(std::vector<float>(kTokens * 3, NAN));
  const DeviceMemory ids(kTokens * 4), weights(kTokens * 4);
  const DeviceMemory index = ToDevice(std::vector<int32_t>{7, 0, 3});
  std::vector<int32_t> want(8, 0);
  want[0] = FaultOf(1, 2);
  const DeviceMemory records = ToDevice(want);
  Check(SelectExpertsOnDevice({.logits = logits.as<float>(),
                               .tokens = kTokens,
                               .num_experts = 3,
                               .top_k = 1,
                               .ids = ids.as<int32_t>(),
                               .weights = weights.as<float>(),
                               .faults = {.records = records.as<int32_t>(),
                                          .index = index.as<int32_t>(),
                                          .begin = 2,
                                          .end = 5,
                                          .of_expert_0 = FaultOf(4, 0)}},
                              nullptr),
        "choice of experts");
  want[7] = want[3] = FaultOf(4, 0);
  EXPECT_EQ(ToHost<int32_t>(records, 8), want);
}

TEST(SelectExpertsOnDevice, WritesPlaces) {
  SKIP_WITHOUT_GPU();
  const RouterConfig config = {.num_experts = 4, .top_k = 2};
  const Choice got = OnDevice(config, {0, 3, 2, 1}, 1, {}, {10, 11, -1, 13});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{11, -1}));
}

}  // namespace
}  // namespace switchyard::cuda
