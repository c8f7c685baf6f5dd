#include <gmock/gmock.h>

#include "eplb/plan_job.h"
#include "eplb/planner.h"
#include "kernels/testing.h"

namespace switchyard {
namespace {

constexpr int kSteps = 50, kLayers = 2, kExperts = 16, kRanks = 4, kPlaces = 16;
const RankTopology kTopology{.ranks = kRanks};

// A load of `rows` rows per step and layer. In layer 0, half of them go to four experts on one
// rank.
LoadHistory Skewed(int rows) {
  kernels::Random random(1);
  LoadHistory history{kSteps, kLayers, kExperts,
                      std::vector<int32_t>(size_t{kSteps} * kLayers * kExperts)};
  for (int step = 0; step < kSteps; ++step)
    for (int layer = 0; layer < kLayers; ++layer)
      for (int row = 0; row < rows; ++row) {
        const bool hot = layer == 0 && row % 2 == 0;
        const auto expert = hot ? 4 + random.Below(4) : random.Below(kExperts);
        ++history.counts[(step * kLayers + layer) * kExperts + expert];
      }
  return history;
}

// Number of layers of DeepSeek's plan that are reset. That planner ignores the cost of moves.
int Reset(const LoadHistory& history, int64_t passes, const RankTopology& topology,
          std::vector<bool>* moved) {
  const Placement now = Placement::Trivial(kLayers, kPlaces, kExperts);
  Placement plan = PlanPlacement(ParseEplbAlgorithm("deepseek"),
                                 {.history = &history, .topology = topology, .physical = kPlaces});
  const int reset = ResetLayersNotWorthMoving(history, passes, EpDispatchAlgorithm::kStatic,
                                              topology, now, &plan);
  for (int layer = 0; layer < kLayers; ++layer)
    moved->push_back(!std::ranges::equal(now.Layer(layer), plan.Layer(layer)));
  return reset;
}

TEST(PlanValueTest, OnlyLayersThatGainAreMoved) {
  std::vector<bool> moved;
  EXPECT_EQ(Reset(Skewed(2000), 500, kTopology, &moved), 1);
  EXPECT_THAT(moved, ::testing::ElementsAre(true, false));
}

TEST(PlanValueTest, TinyTrafficMovesNothing) {
  std::vector<bool> moved;
  // One row per pass, 1000 passes.
  EXPECT_EQ(Reset(Skewed(20), 1000, kTopology, &moved), kLayers);
  EXPECT_THAT(moved, ::testing::ElementsAre(false, false));
}

// The minimum rows per step at which the skewed layer is moved.
int FewestRows(const RankTopology& topology) {
  for (int rows = 2;; rows += 2) {
    std::vector<bool> moved;
    Reset(Skewed(rows), kSteps, topology, &moved);
    if (moved[0]) return rows;
  }
}

TEST(PlanValueTest, ExpertsOfOtherNodesCostMore) {
  EXPECT_LT(FewestRows(kTopology), FewestRows({.ranks = kRanks, .nodes = 2}));
}

// With costs of moves, the limit is the time of the slowest rank.
TEST(PlanValueTest, CheapMovesNeedLessGain) {
  const auto with = [](double move) {
    return RankTopology{.ranks = kRanks,
                        .costs = std::vector<RankCost>(kRanks, {.row = 1, .move = move})};
  };
  EXPECT_LE(FewestRows(with(1)), FewestRows(kTopology));
  EXPECT_LT(FewestRows(with(1)), FewestRows(with(100)));
  EXPECT_LT(FewestRows(with(100)), FewestRows(with(1000)));
}

TEST(PlanValueTest, AnEqualPlanIsNoReset) {
  const LoadHistory history = Skewed(40);
  const Placement now = Placement::Trivial(kLayers, kPlaces, kExperts);
  Placement plan = now;
  EXPECT_EQ(ResetLayersNotWorthMoving(history, kSteps, EpDispatchAlgorithm::kBalanced, kTopology,
                                      now, &plan),
            0);
}

}  // namespace
}  // namespace switchyard
