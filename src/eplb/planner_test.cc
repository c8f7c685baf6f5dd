#include "eplb/planner.h"

#include "core/testing.h"
#include "eplb/replica_choice.h"
#include "eplb/test_loads.h"

namespace switchyard {
namespace {

PlanRequest Request(const LoadHistory& loads, const RankTopology& topology, int physical) {
  return {.history = &loads, .topology = topology, .physical = physical};
}

TEST(PlannerTest, EveryAlgorithmPlacesEveryExpert) {
  for (const auto& [experts, physical, ranks, nodes] :
       {std::array{16, 16, 4, 2}, {16, 24, 8, 2}, {64, 80, 16, 4}, {12, 36, 6, 1}}) {
    const LoadHistory loads = RandomLoads(6, 2, experts, 1.5, physical);
    const RankTopology topology{.ranks = ranks, .nodes = nodes, .groups = nodes};
    for (const char* name :
         {"auto", "deepseek", "deepseek_hierarchical", "elasticity_aware", "yard"}) {
      SCOPED_TRACE(fmt::format("{} {} on {}", name, physical, ranks));
      const Placement plan =
          PlanPlacement(ParseEplbAlgorithm(name), Request(loads, topology, physical));
      ValidatePlacement(plan, topology);
      EXPECT_EQ(plan.ToExpertPlacement(1).num_physical(), physical);
    }
  }
}

TEST(PlannerTest, PlansForTheRanksThatAreLeft) {
  const LoadHistory loads = RandomLoads(6, 3, 32, 1.2, 5);
  for (const char* name : {"elasticity_aware", "yard"})
    for (const int physical : {48, 50}) {  // 50: some ranks have 7 slots, others 6
      SCOPED_TRACE(fmt::format("{} {}", name, physical));
      RankTopology topology{.ranks = 8, .nodes = 2};
      topology.active = {1, 0, 1, 1, 1, 1, 0, 1};
      const Placement plan =
          PlanPlacement(ParseEplbAlgorithm(name), Request(loads, topology, physical));
      ValidatePlacement(plan, topology);
      for (const int dead : {1, 6}) {
        const Range range = ExpertsOfRank(physical, 8, dead);
        for (int p = range.begin; p < range.end; ++p) EXPECT_EQ(plan.Layer(0)[p], -1);
      }
      // The map for the MoE layer has an expert in every slot.
      EXPECT_EQ(plan.ToExpertPlacement(0).num_physical(), physical);
      EXPECT_EQ(ExpertLocation(plan).placement(), plan);
    }
}

TEST(PlannerTest, ElasticityAwareIsDeepSeeksWhereAllAreAlive) {
  const LoadHistory loads = RandomLoads(6, 2, 32, 1, 5);
  const RankTopology topology{.ranks = 8, .nodes = 2, .groups = 4};
  EXPECT_EQ(PlanPlacement(EplbAlgorithm::kElasticityAware, Request(loads, topology, 40)),
            PlanPlacement(EplbAlgorithm::kDeepSeekHierarchical, Request(loads, topology, 40)));
}

TEST(PlannerTest, ErrorsNameTheCause) {
  const LoadHistory loads = RandomLoads(1, 1, 8, 1, 1);
  const auto error = [&](const char* name, const RankTopology& topology, int physical) {
    return ErrorOf(
        [&] { PlanPlacement(ParseEplbAlgorithm(name), Request(loads, topology, physical)); });
  };
  EXPECT_EQ(error("best", {.ranks = 2}, 8),
            "--eplb-algorithm best: want auto, deepseek, deepseek_hierarchical, elasticity_aware "
            "or yard");
  EXPECT_EQ(error("yard", {.ranks = 4, .nodes = 3}, 8), "4 ranks are not divisible by 3 nodes");
  EXPECT_EQ(error("yard", {.ranks = 4}, 40),
            "rank 0 has 10 slots for 8 experts: it would hold an expert twice");
  RankTopology half{.ranks = 4};
  half.active = {1, 1, 0, 0};
  EXPECT_EQ(error("yard", half, 12),
            "8 experts do not fit; 2 of 4 ranks are alive and have 6 slots");
  EXPECT_EQ(error("deepseek", half, 16),
            "deepseek plans for all ranks, but only 2 of 4 are alive; want elasticity_aware or "
            "yard, which use living ranks only");
  half.active = {0, 0, 0, 0};
  EXPECT_EQ(error("yard", half, 12), "no rank is alive to hold experts");
  half.active = {1};
  EXPECT_EQ(error("yard", half, 12), "`active` has 1 entries for 4 ranks");
  const LoadHistory broken{2, 1, 8, {1, 2, 3}};
  EXPECT_EQ(ErrorOf([&] { PlanPlacement(EplbAlgorithm::kYard, Request(broken, {}, 8)); }),
            "3 counts do not match 2 steps, 1 layers and 8 experts");
  const LoadHistory negative{1, 1, 2, {1, -1}};
  EXPECT_EQ(ErrorOf([&] { PlanPlacement(EplbAlgorithm::kYard, Request(negative, {}, 2)); }),
            "a token count is negative");
}

TEST(PlacementTest, ValidationNamesLayerAndPlace) {
  Placement placement = Placement::Trivial(2, 6, 4);
  const RankTopology topology{.ranks = 2};
  ValidatePlacement(placement, topology);
  placement.Layer(1)[3] = 4;
  EXPECT_EQ(ErrorOf([&] { ValidatePlacement(placement, topology); }),
            "layer 1: slot 3 of rank 1 holds expert 4; the model has 4");
  placement.Layer(1)[3] = 0;
  EXPECT_EQ(ErrorOf([&] { ValidatePlacement(placement, topology); }),
            "layer 1: expert 3 has no slot on a living rank");
}

// Rank 0 receives two experts in 3 each, rank 1 one in 10.
TEST(CountMovesTest, TheSlowestRankDeterminesTheTimeOfMoves) {
  const std::vector<int32_t> before = {0, 1, 2, 3, 4, 5}, after = {0, 3, 4, 3, 4, 2};
  RankTopology topology{.ranks = 2, .slots = {3, 3}, .costs = {{.move = 3}, {.move = 10}}};
  EXPECT_TRUE(topology.HasMoveCosts());
  EXPECT_EQ(CountMoves(before, after, topology, 6).time, 10);
  topology.costs[1].move = 5;
  EXPECT_EQ(CountMoves(before, after, topology, 6).time, 6);
  topology.costs.clear();
  EXPECT_FALSE(topology.HasMoveCosts());
  EXPECT_EQ(CountMoves(before, after, topology, 6).time, 0);
}

TEST(CountMovesTest, CountsWhatARankDoesNotHave) {
  const RankTopology topology{.ranks = 4, .nodes = 2};
  const std::vector<int32_t> before{0, 1, 2, 3, 4, 5, 0, 1};
  //                 slots swapped | 0 from rank 0's node | 0 twice, received once | unchanged
  const std::vector<int32_t> after{1, 0, 2, 0, 2, 2, 0, 1};
  const Moves moves = CountMoves(before, after, topology, 6);
  EXPECT_EQ(moves.same_node, 1);
  EXPECT_EQ(moves.other_node, 1);
}

TEST(ExpertLocationTest, ListsReplicasByPlace) {
  Placement placement(1, 5, 3);
  placement.physical_to_logical = {2, 0, -1, 2, 1};
  const ExpertLocation location(placement);
  EXPECT_EQ(location.max_replicas(), 2);
  const auto all = location.logical_to_all_physical();
  EXPECT_EQ(std::vector<int32_t>(all.begin(), all.end()),
            (std::vector<int32_t>{1, -1, 4, -1, 0, 3}));
  EXPECT_EQ(location.Replicas(0, 2).size(), 2u);
}

}  // namespace
}  // namespace switchyard
