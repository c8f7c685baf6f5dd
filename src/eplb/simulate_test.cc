#include "eplb/simulate.h"

#include "core/testing.h"
#include "eplb/test_loads.h"

namespace switchyard {
namespace {

struct Row {
  const char* trace;
  int physical, ranks, nodes, groups;
  double at_least;
};

SimulateOptions Options(const Row& row) {
  return {.topology = {.ranks = row.ranks, .nodes = row.nodes, .groups = row.groups},
          .physical = row.physical};
}

// One layer of the recorded traces: planned every 5 steps from the last 50, evaluated on the
// following steps.
TEST(SimulateTest, YardWithBalancedDispatchIsBetterThanDeepSeekOnEveryRow) {
  const Row rows[] = {
      {"steady", 256, 8, 1, 1, 0.93},  {"steady", 272, 8, 1, 1, 0.96},
      {"steady", 288, 32, 4, 8, 0.95}, {"steady", 320, 64, 8, 8, 0.91},
      {"drift", 256, 8, 1, 1, 0.78},   {"drift", 272, 8, 1, 1, 0.95},
      {"drift", 288, 32, 4, 8, 0.78},  {"drift", 320, 64, 8, 8, 0.70},
      {"shift", 256, 8, 1, 1, 0.91},   {"shift", 272, 8, 1, 1, 0.97},
      {"shift", 288, 32, 4, 8, 0.90},  {"shift", 320, 64, 8, 8, 0.88},
  };
  for (const Row& row : rows) {
    const LoadHistory trace = RecordedTrace(row.trace);
    SimulateOptions options = Options(row);
    options.every = 5;
    const SimulateResult ours = Simulate(trace, options);
    options.every = 50;
    options.algorithm =
        row.nodes > 1 ? EplbAlgorithm::kDeepSeekHierarchical : EplbAlgorithm::kDeepSeek;
    options.dispatch = EpDispatchAlgorithm::kDynamic;
    const SimulateResult theirs = Simulate(trace, options);
    SCOPED_TRACE(fmt::format("{} {} on {}: {:.4f}, deepseek {:.4f}, moves {} and {}", row.trace,
                             row.physical, row.ranks, ours.mean_after(), theirs.mean_after(),
                             ours.moves().total(), theirs.moves().total()));
    EXPECT_GT(ours.mean_after(), theirs.mean_after());
    EXPECT_GE(ours.mean_after(), row.at_least);
    if (std::string(row.trace) == "steady") {
      EXPECT_LT(ours.moves().total(), theirs.moves().total() / 2);
    }
  }
}

TEST(SimulateTest, KeepsWhatItNeedsForThePicture) {
  const LoadHistory trace = RandomLoads(12, 2, 16, 1, 4);
  SimulateOptions options{.topology = {.ranks = 4}, .physical = 20, .window = 4, .every = 3};
  std::vector<int> told;
  options.progress = [&](int step) { told.push_back(step); };
  const SimulateResult result = Simulate(trace, options);
  EXPECT_EQ(result.first_step, 4);
  ASSERT_EQ(result.plans.size(), 3u);
  EXPECT_EQ(result.plans[1].step, 7);
  EXPECT_GT(result.plans[0].moves.total(), 0);
  EXPECT_EQ(result.before.size(), 8u);
  EXPECT_EQ(result.after.size(), 8u);
  ASSERT_EQ(result.load_after.size(), 32u);
  for (size_t step = 0; step < 8; ++step) {
    float sum = 0;
    for (int rank = 0; rank < 4; ++rank) sum += result.load_after[step * 4 + rank];
    EXPECT_NEAR(sum, 4, 1e-4);
  }
  EXPECT_GT(result.mean_after(), result.mean_before());
  EXPECT_EQ(told, (std::vector<int>{4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(LayerBalancednessTest, IsMeanOverMaxOfEachLayer) {
  // Experts 0 and 1 are on rank 0, experts 2 and 3 on rank 1. In layer 0, rank 0 has 3 of 4 tokens
  // in the first step, and the second step is even. Layer 1 has no tokens.
  const LoadHistory loads{2, 2, 4, {2, 1, 1, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 0}};
  const std::vector<double> balancedness = LayerBalancedness(
      loads, Placement::Trivial(2, 4, 4), EpDispatchAlgorithm::kDynamic, {.ranks = 2});
  ASSERT_EQ(balancedness.size(), 2u);
  EXPECT_NEAR(balancedness[0], (2.0 / 3 + 1) / 2, 1e-12);
  EXPECT_EQ(balancedness[1], 1);
}

TEST(SimulateTest, SaysWhatIsWrong) {
  const LoadHistory trace = RandomLoads(4, 1, 8, 1, 4);
  EXPECT_EQ(ErrorOf([&] { Simulate(trace, {.topology = {.ranks = 2}, .physical = 8}); }),
            "4 recorded steps; a window of 50 leaves none to evaluate");
  EXPECT_EQ(ErrorOf([&] {
              Simulate(trace, {.topology = {.ranks = 2}, .physical = 8, .window = 2, .every = 0});
            }),
            "a window of 2 steps and a plan every 0 steps: want at least 1");
}

}  // namespace
}  // namespace switchyard
