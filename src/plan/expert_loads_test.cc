// Expert loads and rebalances in simulations.
#include "plan/expert_loads.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <tuple>

#include "core/error.h"
#include "core/format.h"
#include "core/temporary_directory.h"
#include "plan/engine_experts.h"
#include "plan/step_clock.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::HasSubstr;

double Sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

struct Planned {
  Question question;
  Evaluation evaluation;
  LayoutCosts costs;

  explicit Planned(const std::string& layout, const EplbOptions& eplb = {})
      : question(QuestionOf(eplb)),
        evaluation(Evaluate(question, ParseLayout(layout))),
        costs(question, evaluation.layout, evaluation.plan) {}
  Planned(const Planned&) = delete;  // as LayoutCosts
  static Question QuestionOf(const EplbOptions& eplb) {
    Question q = GpuQuestion("qwen3_30b_a3b", "h200", 4);
    q.config.eplb = eplb;
    q.load.input = 200;
    q.load.output = 20;
    return q;
  }
  EngineExperts experts(const ExpertLoadOptions& options) const {
    return {std::make_shared<ExpertLoads>(options, question.model), question, evaluation, costs};
  }
};

TEST(ExpertLoads, AZipfRouterChoosesTopKDifferentExperts) {
  const ModelConfig model = PublishedModel("qwen3_30b_a3b");
  for (const char* source : {"uniform", "zipf:0.5", "zipf:1", "zipf:3"}) {
    const ExpertLoads loads({.source = source}, model);
    EXPECT_NEAR(Sum(loads.of_rank()), 8, 1e-6) << source;
    EXPECT_LE(loads.of_rank().front(), 1) << source;
    EXPECT_TRUE(std::ranges::is_sorted(loads.of_rank(), std::greater<>())) << source;
  }
}

TEST(ExpertLoads, PopularExpertsDriftAndSeedsRepeat) {
  const auto loads = std::make_shared<ExpertLoads>(
      ExpertLoadOptions{.source = "zipf:1", .drift_seconds = 32, .seed = 3},
      PublishedModel("qwen3_30b_a3b"));
  ExpertPopularity once(loads), again(loads);
  std::vector<double> first(128), later(128), same(128);
  once.Get(5, first);
  EXPECT_FALSE(once.Advance(0.5, 1));
  EXPECT_DOUBLE_EQ(once.next_change(), 1.0);
  EXPECT_TRUE(once.Advance(2, 2));
  once.Get(5, later);
  int changed = 0;
  for (size_t e = 0; e < 128; ++e) changed += first[e] != later[e] ? 1 : 0;
  EXPECT_THAT(changed, testing::AllOf(testing::Gt(0), testing::Le(8)));  // two of 32 changes
  EXPECT_NEAR(Sum(later), 8, 1e-6);
  again.Advance(2, 7);
  again.Get(5, same);
  EXPECT_EQ(same, later);
}

TEST(ExpertLoads, RecordedStepsAreReplayedInOrder) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "loads.json";
  const ModelConfig model = PublishedModel("qwen3_30b_a3b");
  std::vector<int> hot(128, 0), even(128, 1);
  hot[7] = 5;
  std::ofstream(file) << fmt::format("{{\"logical_count\": [[[{}]], [[{}]]]}}", Joined(hot, ","),
                                     Joined(even, ","));
  ExpertPopularity popularity(
      std::make_shared<ExpertLoads>(ExpertLoadOptions{.source = file.string()}, model));
  EXPECT_EQ(popularity.equal_steps(), 1);
  std::vector<double> of(128);
  for (int64_t step = 0; step < 5; ++step) {
    popularity.Advance(0, step);
    popularity.Get(47, of);
    EXPECT_DOUBLE_EQ(of[7], step % 2 == 0 ? 8 : 8.0 / 128) << step;
  }
  const Planned planned("tp4-ep4-dp4-dense1-deepep");
  EngineExperts experts = planned.experts({.source = file.string()});
  EXPECT_FLOAT_EQ(experts.Shares(0).Layer(0)[0], 4);  // expert 7 is on rank 0
  experts.EndSteps(1, 10, 0.01, 0.01);
  EXPECT_FLOAT_EQ(experts.Shares(0.01).Layer(0)[3], 1);
}

TEST(ExpertLoads, WrongSourcesAreRefused) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "loads.json";
  std::ofstream(file) << "{\"logical_count\": [[[1, 2]]]}";
  for (const auto& [source, drift, wanted] :
       {std::tuple<std::string, double, const char*>{"zipf:x", 0, "--expert-loads zipf:x"},
        {"zipf:-1", 0, "0 to 10"},
        {file.string(), 0, "recorded 2 experts"},
        {file.string(), 5, "--expert-drift"},
        {"zipf:1", 1e-9, "--expert-drift"},
        {"/no/such/file", 0, "/no/such/file"}}) {
    try {
      const ExpertLoads loads({.source = source, .drift_seconds = drift},
                              PublishedModel("qwen3_30b_a3b"));
      FAIL() << source;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(wanted));
    }
  }
}

TEST(ExpertShares, EqualRanksVaryByChance) {
  const ExpertShares even{.ranks = 4, .shares = {1, 1, 1, 1}};
  EXPECT_NEAR(even.Variation(0, 100), std::sqrt(2 * std::log(4) / 100), 1e-9);
  const ExpertShares one{.ranks = 4, .shares = {3.7F, 0.1F, 0.1F, 0.1F}};
  EXPECT_NEAR(one.Variation(0, 100), 0, 1e-3);
}

// Steps follow the most loaded rank, at both fidelities.
TEST(ExpertShares, TheMostLoadedRankDeterminesTheTime) {
  const Planned planned("tp4-ep4-dp4-dense1-deepep");
  const std::vector<GroupRows> groups(4, {.prompt = 4000, .prompt_keys = 500});
  const auto layers = planned.question.model.layers.size();
  ExpertShares even{.ranks = 4, .shares = std::vector<float>(4 * layers, 1), .version = 1};
  ExpertShares skewed = even;
  skewed.version = 2;
  for (size_t i = 0; i < layers; ++i) {
    skewed.shares[4 * i + i % 4] = 2.5F;
    for (size_t other = 1; other < 4; ++other) skewed.shares[4 * i + (i + other) % 4] = 0.5F;
  }
  ShapeClock steps(planned.costs);
  OperationClock operations(planned.costs);
  for (StepClock* clock : {static_cast<StepClock*>(&steps), static_cast<StepClock*>(&operations)})
    EXPECT_GT(clock->Seconds(groups, &skewed), 1.3 * clock->Seconds(groups, &even));
  EXPECT_NEAR(steps.Seconds(groups, &skewed) / operations.Seconds(groups, &skewed), 1, 0.05);
}

// The engine's planner balances the loads, and its migration takes the time of the links.
TEST(EngineExperts, ARebalanceBalancesAndCosts) {
  for (const char* algorithm : {"deepseek", "yard"}) {
    const Planned planned(
        "tp4-ep4-dp4-dense1-deepep-red8",
        {.enable = true, .algorithm = algorithm, .num_iterations = 100, .dispatch = "balanced"});
    ASSERT_TRUE(planned.evaluation.accepted) << planned.evaluation.refused;
    EngineExperts experts = planned.experts({.source = "zipf:1", .seed = 1});
    double now = 0;
    for (int i = 0; i < 2000; ++i) {
      experts.Shares(now);
      const int64_t steps = std::min<int64_t>(experts.equal_steps(), 50);
      const double seconds = 0.02 + experts.added_seconds();
      now += static_cast<double>(steps) * seconds;
      experts.EndSteps(steps, 4000, seconds, now);
    }
    const ExpertFigures figures = experts.figures();
    ASSERT_GE(figures.rebalances.size(), 1u) << algorithm;
    const Rebalance& first = figures.rebalances.front();
    EXPECT_GT(first.after, 1.1 * first.before) << algorithm;
    EXPECT_GT(first.after, 0.9) << algorithm;
    EXPECT_EQ(first.trigger, "iterations");
    EXPECT_GT(first.same_node, 0);
    EXPECT_EQ(first.other_node, 0);
    EXPECT_GT(first.added_seconds, first.bytes / 4 / 1e12);
    EXPECT_GT(first.end, first.start);
  }
}

TEST(EngineExperts, AnAbsentRankGetsNoRows) {
  const Planned planned("tp4-ep4-dp4-dense1-deepep");
  EngineExperts experts = planned.experts({.source = "uniform"});
  const std::vector<int> active = {0, 2, 3};
  experts.ServeWith(active);
  const ExpertShares& shares = experts.Shares(0);
  ASSERT_EQ(shares.ranks, 3);
  EXPECT_NEAR(Sum(std::vector<double>(shares.Layer(0).begin(), shares.Layer(0).end())), 3, 1e-3);
  experts.Restart();
  EXPECT_EQ(experts.Shares(0).ranks, 4);
}

// As in the engine, experts move among the ranks that serve, and a single rank has nothing to move.
TEST(EngineExperts, ExpertsMoveAmongTheActiveRanks) {
  const Planned planned("tp4-ep4-dp4-dense1-deepep-red8",
                        {.enable = true, .num_iterations = 100, .dispatch = "balanced"});
  ASSERT_TRUE(planned.evaluation.accepted) << planned.evaluation.refused;
  EngineExperts experts = planned.experts({.source = "zipf:1", .seed = 1});
  double now = 0;
  const auto run = [&](int iterations, int ranks) {
    for (int i = 0; i < iterations; ++i) {
      EXPECT_EQ(experts.Shares(now).ranks, ranks);
      const int64_t steps = std::min<int64_t>(experts.equal_steps(), 50);
      const double seconds = 0.02 + experts.added_seconds();
      now += static_cast<double>(steps) * seconds;
      experts.EndSteps(steps, 4000, seconds, now);
    }
  };
  const auto count = [&] { return experts.figures().rebalances.size(); };
  const auto run_until = [&](size_t rebalances, int ranks) {
    for (int i = 0; i < 500 && count() < rebalances; ++i) run(1, ranks);
  };
  run_until(1, 4);
  ASSERT_EQ(count(), 1u);
  EXPECT_GT(experts.added_seconds(), 0);
  experts.ServeWith(std::vector<int>{0, 2, 3});  // the migration ends without an effect
  EXPECT_EQ(experts.added_seconds(), 0);
  run_until(2, 3);
  ASSERT_EQ(count(), 2u);
  for (int i = 0; i < 3000 && experts.figures().rebalances[1].end == 0; ++i) run(1, 3);
  run(1, 3);
  EXPECT_EQ(experts.figures().rebalances[0].end, 0);
  const Rebalance of_three = experts.figures().rebalances[1];
  EXPECT_GT(of_three.end, of_three.start);
  EXPECT_GT(of_three.after, of_three.before);
  experts.ServeWith(std::vector<int>{1});
  const size_t before = count();
  run(200, 1);
  EXPECT_EQ(count(), before);
  experts.Restart();
  run_until(before + 1, 4);
  EXPECT_GT(count(), before);
}

}  // namespace
}  // namespace switchyard::plan
