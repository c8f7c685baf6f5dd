// Expert placement, and the errors for invalid placements.
#include "moe/placement/placement.h"

#include <functional>
#include <set>

#include "core/error.h"
#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> MapOf(const ExpertPlacement& placement) {
  const auto map = placement.physical_to_logical();
  return {map.begin(), map.end()};
}

TEST(ExpertsOfRankTest, AreRunsOfNearlyEqualLength) {
  const auto lengths = [](int experts, int ep) {
    std::vector<int> counts;
    int next = 0;
    for (int rank = 0; rank < ep; ++rank) {
      const Range range = ExpertsOfRank(experts, ep, rank);
      EXPECT_EQ(range.begin, next);
      next = range.end;
      counts.push_back(range.end - range.begin);
    }
    EXPECT_EQ(next, experts);
    return counts;
  };
  EXPECT_THAT(lengths(64, 4), ElementsAre(16, 16, 16, 16));
  EXPECT_THAT(lengths(10, 4), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(lengths(2, 4), ElementsAre(1, 1, 0, 0));
}

TEST(ExpertPlacementTest, TrivialDealsReplicasInOrder) {
  const ExpertPlacement plain = ExpertPlacement::Trivial(4);
  EXPECT_THAT(MapOf(plain), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(plain.is_identity());
  const ExpertPlacement redundant = ExpertPlacement::Trivial(3, 4);
  EXPECT_THAT(MapOf(redundant), ElementsAre(0, 1, 2, 0, 1, 2, 0));
  EXPECT_FALSE(redundant.is_identity());
  EXPECT_FALSE(ExpertPlacement(3, {0, 2, 1}).is_identity());
  EXPECT_EQ(ExpertPlacement().num_logical(), 0);
}

TEST(ExpertPlacementTest, RefusesForeignAndMissingExperts) {
  EXPECT_THAT(ErrorOf([] {
                ExpertPlacement(2, {0, 2});
              }),
              HasSubstr("physical expert 1 maps to logical expert 2; the model has 2"));
  EXPECT_THAT(ErrorOf([] {
                ExpertPlacement(3, {0, 2, 0});
              }),
              HasSubstr("logical expert 1 has no physical expert"));
}

TEST(ExpertPlacementTest, TokensGoToALocalReplicaElseRoundRobin) {
  // Two slots on each of four ranks: {0,1} {2,0} {3,1} {0,3}
  const ExpertPlacement placement(4, {0, 1, 2, 0, 3, 1, 0, 3});
  EXPECT_THAT(placement.ReplicasFor(4, 0), ElementsAre(0, 1, 2, 7));
  EXPECT_THAT(placement.ReplicasFor(4, 1), ElementsAre(3, 1, 2, 4));
  EXPECT_THAT(placement.ReplicasFor(4, 2), ElementsAre(6, 5, 2, 4));
  EXPECT_THAT(placement.ReplicasFor(4, 3), ElementsAre(6, 1, 2, 7));
}

TEST(ExpertPlacementTest, TokensStayOnTheirNodeWhereTheyCan) {
  // Two slots on each of four ranks, on two nodes: {0,1} {2,4} | {3,1} {0,3}
  const ExpertPlacement placement(5, {0, 1, 2, 4, 3, 1, 0, 3});
  EXPECT_THAT(placement.ReplicasFor(4, 0, 2), ElementsAre(0, 1, 2, 7, 3));
  EXPECT_THAT(placement.ReplicasFor(4, 1, 2), ElementsAre(0, 1, 2, 4, 3));
  EXPECT_THAT(placement.ReplicasFor(4, 2, 2), ElementsAre(6, 5, 2, 4, 3));
  EXPECT_THAT(placement.ReplicasFor(4, 3, 2), ElementsAre(6, 5, 2, 7, 3));
}

TEST(ExpertPlacementTest, TokensThatAllRanksHaveGoToReplicasRoundRobin) {
  const ExpertPlacement placement(4, {0, 1, 2, 0, 3, 1, 0, 3});
  EXPECT_THAT(placement.CommonReplicas(), ElementsAre(0, 5, 2, 7));
}

TEST(ExpertPlacementTest, EveryReplicaIsOfItsExpertAndLocalWherePossible) {
  kernels::Random random(3);
  for (int round = 0; round < 50; ++round) {
    const int experts = 1 + static_cast<int>(random.Below(12)), ep = 1 << random.Below(4);
    std::vector<int32_t> map = random.Shuffled(experts);
    for (int64_t i = random.Below(9); i > 0; --i)
      map.push_back(static_cast<int32_t>(random.Below(experts)));
    const ExpertPlacement placement(experts, map);
    for (int rank = 0; rank < ep; ++rank) {
      const Range home = ExpertsOfRank(placement.num_physical(), ep, rank);
      const std::set<int32_t> at_home(map.begin() + home.begin, map.begin() + home.end);
      const std::vector<int32_t> replicas = placement.ReplicasFor(ep, rank);
      for (int32_t logical = 0; logical < experts; ++logical) {
        EXPECT_EQ(map[replicas[logical]], logical);
        EXPECT_EQ(replicas[logical] >= home.begin && replicas[logical] < home.end,
                  at_home.contains(logical));
      }
    }
  }
}

TEST(ExpertPlacementTest, RanksMayHaveTheirOwnNumbersOfExperts) {
  const std::vector<int32_t> slots = {1, 4, 2};
  EXPECT_EQ(ExpertsOfRank(7, 3, 1, slots).begin, 1);
  EXPECT_EQ(ExpertsOfRank(7, 3, 1, slots).end, 5);
  EXPECT_EQ(ExpertsOfRank(7, 3, 2, slots).end, 7);
  const MeshShape shape{.tp = 3, .ep = 3, .expert_slots = slots};
  EXPECT_EQ(ExpertsOfRank(7, Mesh(shape, 2)).begin, 5);
  const ExpertMap map(7, 3, false, slots);
  EXPECT_EQ(map.MaxLocalExperts(), 4);
  EXPECT_EQ(map.LocalExperts(2), 2);
  EXPECT_EQ(map.Owner(0), 0);
  EXPECT_EQ(map.Owner(4), 1);
  EXPECT_EQ(map.LocalId(4), 3);
  EXPECT_EQ(map.Owner(6), 2);
  // Expert 0 is on ranks 0 and 2, experts 1 to 4 on rank 1.
  const ExpertPlacement placement(6, {0, 1, 2, 3, 4, 5, 0});
  EXPECT_THAT(placement.ReplicasFor(3, 0, 1, slots), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(placement.ReplicasFor(3, 2, 1, slots), ElementsAre(6, 1, 2, 3, 4, 5));
}

TEST(ExpertMapTest, SharedCopiesComeAfterTheOthersOneOnEachRank) {
  const ExpertMap plain(5, 2, false);
  EXPECT_EQ(plain.size(), 5);
  EXPECT_EQ(plain.LocalExperts(0), 3);
  EXPECT_EQ(plain.LocalExperts(1), 2);

  const ExpertMap map(5, 2, true);
  EXPECT_EQ(map.size(), 7);
  EXPECT_EQ(map.LocalExperts(0), 4);
  EXPECT_EQ(map.LocalExperts(1), 3);
  EXPECT_EQ(map.MaxLocalExperts(), 4);
  for (int e = 0; e < 5; ++e) EXPECT_EQ(map.Owner(e), plain.Owner(e));
  EXPECT_EQ(map.Owner(5), 0);
  EXPECT_EQ(map.LocalId(5), 3);
  EXPECT_EQ(map.Owner(6), 1);
  EXPECT_EQ(map.LocalId(6), 2);
  EXPECT_EQ(map.LocalIdOn(1, 6), 2);
  EXPECT_EQ(map.LocalIdOn(0, 6), -1);
  EXPECT_EQ(map.LocalIdOn(0, -1), -1);
}

}  // namespace
}  // namespace switchyard
