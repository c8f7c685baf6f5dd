#include "core/testing.h"
#include "eplb/layer_plan.h"
#include "eplb/planner.h"
#include "eplb/test_loads.h"

namespace switchyard {
namespace {

// Random loads, sizes, dead ranks and previous plans.
TEST(YardTest, EveryExpertIsPlacedAndNoRankHoldsOneTwice) {
  std::mt19937 random(1);
  int checked = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    const int nodes = 1 + static_cast<int>(random() % 3);
    const int ranks = nodes * (1 + static_cast<int>(random() % 5));
    const int experts = ranks + static_cast<int>(random() % 40);
    const int physical =
        std::min(experts + static_cast<int>(random() % (2 * experts)), ranks * experts);
    RankTopology topology{.ranks = ranks, .nodes = nodes};
    const LoadHistory loads = RandomLoads(5, 2, experts, 2, seed);
    const Placement first = PlanYard(loads, topology, physical, nullptr);
    ValidatePlacement(first, topology);
    ExpectNoneTwice(first, topology);

    topology.active.assign(ranks, 1);
    topology.active[random() % ranks] = 0;
    int places = 0;
    for (const RankSlots& slots : LivingSlots(topology, physical)) places += slots.size();
    if (places < experts) continue;
    SCOPED_TRACE(fmt::format("seed {}: {} on {} ranks", seed, physical, ranks));
    const Placement second = PlanYard(loads, topology, physical, &first);
    ValidatePlacement(second, topology);
    ExpectNoneTwice(second, topology);
    const RankTopology all{.ranks = ranks, .nodes = nodes};
    const Placement third = PlanYard(loads, all, physical, &second);  // the rank is alive again
    ValidatePlacement(third, all);
    ExpectNoneTwice(third, all);
    ++checked;
  }
  EXPECT_GT(checked, 50);
}

TEST(YardTest, FromTheTrivialPlacementOnNoRankHoldsAnExpertTwice) {
  const LoadHistory loads = RandomLoads(5, 1, 8, 1, 1);
  const RankTopology topology{.ranks = 2};
  const Placement trivial = Placement::Trivial(1, 14, 8);  // rank 1 holds 7 0 1 2 3 4 5
  YardOptions dear;
  dear.move_price = 1e9;
  ExpectNoneTwice(PlanYard(loads, topology, 14, &trivial, dear), topology);
}

TEST(YardTest, KeepsAGoodPlacement) {
  const LoadHistory trace = RecordedTrace("steady");
  const RankTopology topology{.ranks = 32, .nodes = 4};
  const Placement trivial = Placement::Trivial(1, 288, 256);
  const Placement first = PlanYard(trace.Steps(0, 50), topology, 288, &trivial);
  EXPECT_GT(CountMoves(trivial, first, topology).total(), 0);
  EXPECT_EQ(PlanYard(trace.Steps(50, 100), topology, 288, &first), first);
}

TEST(YardTest, MovesNothingThatCostsMoreThanItGains) {
  const LoadHistory trace = RecordedTrace("drift");
  const RankTopology topology{.ranks = 32, .nodes = 4};
  const Placement trivial = Placement::Trivial(1, 288, 256);
  YardOptions options;
  int64_t moves_before = std::numeric_limits<int64_t>::max();
  for (const double price : {0.01, 10.0, 1000.0, 1e9}) {
    options.move_price = price;
    const Placement plan = PlanYard(trace.Steps(0, 50), topology, 288, &trivial, options);
    const int64_t moves = CountMoves(trivial, plan, topology).total();
    EXPECT_LE(moves, moves_before) << price;
    moves_before = moves;
  }
  EXPECT_EQ(moves_before, 0);
}

TEST(YardTest, MovesLessBetweenNodesWhereThatIsDearer) {
  const LoadHistory trace = RecordedTrace("steady").Steps(0, 50);
  const RankTopology topology{.ranks = 32, .nodes = 4};
  const Placement trivial = Placement::Trivial(1, 288, 256);
  YardOptions equal, dear;
  equal.node_price = 1;
  dear.node_price = 20;
  const Moves cheap =
      CountMoves(trivial, PlanYard(trace, topology, 288, &trivial, equal), topology);
  const Moves priced =
      CountMoves(trivial, PlanYard(trace, topology, 288, &trivial, dear), topology);
  EXPECT_LT(priced.other_node, cheap.other_node);
}

TEST(YardTest, SameArgumentsSamePlan) {
  const LoadHistory loads = RandomLoads(8, 3, 64, 1, 9);
  const RankTopology topology{.ranks = 16, .nodes = 2};
  const Placement trivial = Placement::Trivial(3, 80, 64);
  EXPECT_EQ(PlanYard(loads, topology, 80, &trivial), PlanYard(loads, topology, 80, &trivial));
}

// The loads are compared with the mean load, a lower bound for the load of the most loaded rank.
TEST(YardTest, ForecastLoadsAreEvenWithinTwoPercentOfTheBound) {
  for (const char* name : {"steady", "drift", "shift"})
    for (const auto& [physical, ranks] : {std::pair{272, 8}, {288, 32}, {320, 64}}) {
      const LoadHistory trace = RecordedTrace(name).Steps(0, 50);
      const LoadForecast forecast = Forecast(trace);
      const RankTopology topology{.ranks = ranks};
      const std::vector<RankSlots> bins = LivingSlots(topology, physical);
      const std::vector<double> load(forecast.load.begin(), forecast.load.end());
      LayerPlan plan(bins, physical, load);
      plan.Assign(PlanYard(trace, topology, physical, nullptr).Layer(0));
      EXPECT_LE(plan.bin_load(plan.Heaviest()), 1.02 * plan.mean())
          << name << ' ' << physical << " on " << ranks;
    }
}

TEST(YardTest, RanksAreConnectedOverSharedExperts) {
  const LoadHistory trace = RecordedTrace("steady").Steps(0, 50);
  const RankTopology topology{.ranks = 64};
  const Placement plan = PlanYard(trace, topology, 320, nullptr);
  std::vector<std::vector<int>> ranks_of(256);
  for (int p = 0; p < 320; ++p) ranks_of[plan.Layer(0)[p]].push_back(p / 5);
  std::set<int> reached{0};
  for (size_t before = 0; before < reached.size();) {
    before = reached.size();
    for (const auto& ranks : ranks_of)
      if (std::ranges::any_of(ranks, [&](int rank) { return reached.contains(rank); }))
        reached.insert(ranks.begin(), ranks.end());
  }
  EXPECT_EQ(reached.size(), 64u);
}

TEST(YardTest, RefusesAnotherModelsPlacement) {
  const LoadHistory loads = RandomLoads(2, 2, 8, 1, 1);
  const Placement other = Placement::Trivial(3, 10, 8);
  EXPECT_EQ(ErrorOf([&] { PlanYard(loads, {.ranks = 2}, 10, &other); }),
            "yard: the previous placement has 3 layers, 10 slots and 8 experts; want 2, 10 and 8");
}

TEST(MatchRanksTest, FindsTheRanksThatHoldAPart) {
  const std::vector<RankSlots> bins = LivingSlots({.ranks = 3}, 6);
  const std::vector<int32_t> previous{0, 1, 2, 3, 4, 5};
  std::vector<int32_t> next{5, 0, 1, 2, 4, 3};  // experts of the three ranks: {5 0} {1 2} {4 3}
  MatchRanks(previous, bins, 1, 6, 4, next);
  EXPECT_EQ(CountMoves(previous, next, {.ranks = 3}, 6).total(), 3);
  for (const RankSlots& slots : bins) {
    int kept = 0;
    for (int p = slots.begin; p < slots.end; ++p) kept += next[p] == previous[p];
    EXPECT_EQ(kept, 1) << "experts that stay must keep their slots";
  }
}

}  // namespace
}  // namespace switchyard
