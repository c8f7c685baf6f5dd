#include "eplb/replica_choice.h"

#include <map>
#include <numeric>

#include "core/testing.h"
#include "eplb/planner.h"
#include "eplb/test_loads.h"

namespace switchyard {
namespace {

// 4 ranks with 3 slots each, on 2 nodes. Expert 0 is on ranks 0, 2 and 3, expert 1 on ranks 1 and
// 2.
Placement Example() {
  Placement placement(1, 12, 9);
  placement.physical_to_logical = {0, 2, 3, 1, 4, 5, 0, 1, 6, 0, 7, 8};
  return placement;
}
const RankTopology kTopology{.ranks = 4, .nodes = 2};

TEST(StaticReplicasTest, PrefersItsOwnThenItsNodeThenRoundRobin) {
  const ExpertLocation location(Example());
  const auto at = [&](int rank, int expert) {
    return StaticReplicas(location, 0, kTopology, rank)[expert];
  };
  EXPECT_EQ(at(0, 0), 0);  // its own replica
  EXPECT_EQ(at(1, 0), 0);  // rank 0 is on its node
  EXPECT_EQ(at(2, 0), 6);
  EXPECT_EQ(at(3, 1), 7);  // rank 2 is on its node
  EXPECT_EQ(at(2, 8), 11);
}

TEST(DynamicReplicaTest, IsUniformAndDependsOnItsKeyAlone) {
  const std::vector<int32_t> replicas{4, 7, 9};
  std::map<int32_t, int> hits;
  for (int64_t token = 0; token < 3000; ++token) {
    const int32_t place =
        DynamicReplica(replicas, {.seed = 1, .layer = 2, .slot = 3, .token = token});
    EXPECT_EQ(place, DynamicReplica(replicas, {.seed = 1, .layer = 2, .slot = 3, .token = token}));
    ++hits[place];
  }
  ASSERT_EQ(hits.size(), 3u);
  for (const auto& [place, count] : hits) EXPECT_NEAR(count, 1000, 120) << place;
}

TEST(FakeExpertTest, IsUniformAndTakesEachPlaceOnceForAToken) {
  std::map<int32_t, int> hits;
  for (int64_t token = 0; token < 4000; ++token) {
    std::set<int32_t> places;
    for (int32_t slot = 0; slot < 8; ++slot)
      places.insert(FakeExpert(20, {.slot = slot, .token = token}));
    EXPECT_EQ(places.size(), 8u) << token;
    for (const int32_t place : places) ++hits[place];
  }
  ASSERT_EQ(hits.size(), 20u);
  for (const auto& [place, count] : hits) EXPECT_NEAR(count, 1600, 150) << place;
}

TEST(StaticReplicasTest, IsWhatLayersDoThemselves) {
  const LoadHistory loads = RandomLoads(4, 1, 40, 1.2, 3);
  const RankTopology topology{.ranks = 16, .nodes = 4};
  const Placement placement = PlanYard(loads, topology, 64, nullptr);
  const ExpertLocation location(placement);
  for (int rank = 0; rank < topology.ranks; ++rank)
    EXPECT_EQ(StaticReplicas(location, 0, topology, rank),
              placement.ToExpertPlacement(0).ReplicasFor(topology.ranks, rank, topology.nodes));
}

TEST(BatchDividerTest, RanksWithOneTokenEachUseAllReplicas) {
  Placement placement(1, 8, 5);  // 4 ranks with 2 slots; expert 0 is on all of them
  placement.physical_to_logical = {0, 1, 2, 0, 0, 3, 4, 0};
  const ExpertLocation location(placement);
  const RankTopology topology{.ranks = 4};
  for (const auto algorithm : {EpDispatchAlgorithm::kBalanced, EpDispatchAlgorithm::kLp}) {
    std::vector<int32_t> sums(8, 0);
    for (int rank = 0; rank < 32; ++rank) {
      BatchDivider divider;
      divider.Reset(algorithm, location, 0, topology, rank);
      std::vector<int32_t> shares(8);
      divider.Divide(std::vector<int32_t>{1, 0, 0, 0, 0}, shares);
      std::ranges::transform(shares, sums, sums.begin(), std::plus<int32_t>());
    }
    EXPECT_EQ(sums, (std::vector<int32_t>{8, 0, 0, 8, 8, 0, 0, 8}));
  }
}

TEST(BatchDividerTest, EveryAlgorithmSendsEveryTokenToAReplica) {
  const LoadHistory loads = RandomLoads(4, 1, 40, 1.2, 3);
  RankTopology topology{.ranks = 8, .nodes = 2};
  topology.active = {1, 1, 0, 1, 1, 1, 1, 1};
  const Placement placement = PlanYard(loads, topology, 56, nullptr);
  const ExpertLocation location(placement);
  const auto counts = loads.At(0, 0);
  std::map<std::string, int64_t> max_load;
  for (const char* name : {"static", "dynamic", "fake", "balanced", "lp"}) {
    SCOPED_TRACE(name);
    BatchDivider divider;
    divider.Reset(ParseEpDispatchAlgorithm(name), location, 0, topology);
    std::vector<int32_t> shares(56, -1), sums(40, 0);
    divider.Divide(counts, shares);
    for (int p = 0; p < 56; ++p) {
      EXPECT_GE(shares[p], 0);
      if (placement.Layer(0)[p] < 0) {
        EXPECT_EQ(shares[p], 0) << "rank 2 is dead";
      } else {
        sums[placement.Layer(0)[p]] += shares[p];
      }
    }
    const auto total = std::accumulate(counts.begin(), counts.end(), 0);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0), total);
    EXPECT_TRUE(std::string(name) == "fake" || std::ranges::equal(sums, counts));
    for (const RankSlots& slots : LivingSlots(topology, 56))
      max_load[name] = std::max<int64_t>(
          max_load[name],
          std::accumulate(shares.begin() + slots.begin, shares.begin() + slots.end, 0));
  }
  EXPECT_LE(max_load["lp"], max_load["balanced"]);
  EXPECT_LE(max_load["balanced"], 1.01 * max_load["lp"] + 1);
  EXPECT_LE(max_load["balanced"], max_load["dynamic"]);
  EXPECT_LE(max_load["balanced"], max_load["static"]);
}

TEST(ReplicaOfTokenTest, FollowsTheShares) {
  const std::vector<int32_t> replicas{5, 2}, shares{0, 0, 3, 0, 0, 2};
  std::vector<int32_t> chosen;
  for (int32_t i = 0; i < 5; ++i) chosen.push_back(ReplicaOfToken(replicas, shares, i));
  EXPECT_EQ(chosen, (std::vector<int32_t>{5, 5, 2, 2, 2}));
}

TEST(ParseEpDispatchAlgorithmTest, ListsTheNames) {
  EXPECT_EQ(ErrorOf([] { ParseEpDispatchAlgorithm("best"); }),
            "--ep-dispatch-algorithm best: want static, dynamic, fake, balanced or lp");
}

}  // namespace
}  // namespace switchyard
