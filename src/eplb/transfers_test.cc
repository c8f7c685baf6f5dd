// Transfer plans: each slot is filled from the cheapest source, and ranks exchange in pairs.
#include "eplb/transfers.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>

namespace switchyard {
namespace {

using enum FillFrom;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Transfers, EveryPlaceIsFilledTheCheapestWay) {
  // Two nodes of two ranks with three slots each.
  const RankTopology topology{.ranks = 4, .nodes = 2};
  const std::vector<int32_t> previous = {0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2};
  const std::vector<int32_t> next = {0, 0, 3, 3, 6, 6, 6, 7, 8, 0, 1, 8};
  const LayerTransfers plan = PlanTransfers(previous, next, topology);
  EXPECT_THAT(plan.fills,
              ElementsAre(kUnchanged, kSameRank, kSameNode, kUnchanged, kOtherNode, kFreeRider,
                          kUnchanged, kUnchanged, kUnchanged, kUnchanged, kUnchanged, kSameNode));
  // 0 ← 1 and 2 → 3 are concurrent; 2 → 1 follows both.
  ASSERT_EQ(plan.batches.size(), 2u);
  EXPECT_THAT(plan.batches[0], ElementsAre(Transfer{3, 1, 0, 3, 2}, Transfer{8, 2, 3, 8, 11}));
  EXPECT_THAT(plan.batches[1], ElementsAre(Transfer{6, 2, 1, 6, 4}));
}

TEST(Transfers, NothingMovesWhereNothingChanges) {
  const std::vector<int32_t> map = {0, 1, 2, 0};
  const LayerTransfers plan = PlanTransfers(map, map, {.ranks = 2});
  EXPECT_THAT(plan.fills, ::testing::Each(kUnchanged));
  EXPECT_THAT(plan.batches, IsEmpty());
}

TEST(Transfers, PairsSwapInOneBatch) {
  const LayerTransfers plan =
      PlanTransfers(std::vector<int32_t>{0, 1}, std::vector<int32_t>{1, 0}, {.ranks = 2});
  ASSERT_EQ(plan.batches.size(), 1u);
  EXPECT_THAT(plan.batches[0], ElementsAre(Transfer{1, 1, 0, 1, 0}, Transfer{0, 0, 1, 0, 1}));
}

TEST(Transfers, SendersTakeTurns) {
  // Experts 0 and 1 are on ranks 0 and 1; ranks 2 and 3 each need one of them.
  const std::vector<int32_t> previous = {0, 1, 0, 1, 2, 3, 4, 5}, next = {0, 1, 0, 1, 0, 3, 1, 5};
  const LayerTransfers plan = PlanTransfers(previous, next, {.ranks = 4});
  ASSERT_EQ(plan.batches.size(), 1u);
  EXPECT_EQ(plan.batches[0][0].from_rank, 0);
  EXPECT_EQ(plan.batches[0][1].from_rank, 1);
}

TEST(Transfers, WhatADeadRankHeldComesFromTheCheckpoint) {
  const RankTopology topology{.ranks = 3, .active = {1, 0, 1}};
  const std::vector<int32_t> previous = {0, 1, 2, 3, 1, 0}, next = {2, 3, -1, -1, 1, 0};
  const LayerTransfers plan = PlanTransfers(previous, next, topology);
  EXPECT_THAT(plan.fills, ElementsAre(kCheckpoint, kCheckpoint, kUnchanged, kUnchanged, kUnchanged,
                                      kUnchanged));
  EXPECT_THAT(plan.batches, IsEmpty());
}

TEST(Transfers, RandomPlacementsArriveWholeAndInPairs) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int nodes = 1 + round % 3, ranks = nodes * (1 + round % 5), experts = 12;
    const int physical = std::max(ranks, experts + round % 7);
    const RankTopology topology{.ranks = ranks, .nodes = nodes};
    const auto map = [&] {
      std::vector<int32_t> places(physical);
      for (int p = 0; p < physical; ++p)
        places[p] = p < experts ? p : static_cast<int32_t>(random() % experts);
      std::ranges::shuffle(places, random);
      return places;
    };
    const std::vector<int32_t> previous = map(), next = map();
    const LayerTransfers plan = PlanTransfers(previous, next, topology);

    std::vector<int> owner(physical);
    for (const RankSlots& slots : LivingSlots(topology, physical))
      std::fill_n(owner.begin() + slots.begin, slots.size(), slots.rank);
    std::vector<int32_t> now = previous;  // each slot after its fill
    for (const auto& batch : plan.batches) {
      std::map<int, int> peer;
      std::map<int, int> sends;
      EXPECT_FALSE(batch.empty());
      for (const Transfer& t : batch) {
        EXPECT_NE(t.from_rank, t.to_rank);
        EXPECT_EQ(owner[t.from_slot], t.from_rank);
        EXPECT_EQ(owner[t.to_slot], t.to_rank);
        EXPECT_EQ(previous[t.from_slot], t.expert);
        EXPECT_EQ(peer.try_emplace(t.from_rank, t.to_rank).first->second, t.to_rank);
        EXPECT_EQ(peer.try_emplace(t.to_rank, t.from_rank).first->second, t.from_rank);
        EXPECT_EQ(++sends[t.from_rank], 1);
        now[t.to_slot] = t.expert;
      }
    }
    std::vector<int64_t> counts(kNumFillFrom, 0);
    for (int p = 0; p < physical; ++p) {
      ++counts[static_cast<size_t>(plan.fills[p])];
      const auto on_rank = [&](const std::vector<int32_t>& places, int end) {
        for (int q = 0; q < end; ++q)
          if (owner[q] == owner[p] && places[q] == next[p]) return true;
        return false;
      };
      switch (plan.fills[p]) {
        case kUnchanged:
          EXPECT_EQ(previous[p], next[p]);
          break;
        case kSameRank:
          EXPECT_TRUE(on_rank(previous, physical));
          break;
        case kFreeRider:
          EXPECT_FALSE(on_rank(previous, physical));
          EXPECT_TRUE(on_rank(next, p));
          break;
        default:
          EXPECT_FALSE(on_rank(previous, physical));
          EXPECT_FALSE(on_rank(next, p));
          EXPECT_EQ(now[p], next[p]);
      }
    }
    Placement before(1, physical, experts), after(1, physical, experts);
    before.physical_to_logical = previous;
    after.physical_to_logical = next;
    EXPECT_EQ(CountFills(before, after, topology), counts);
    const Moves moves = CountMoves(before, after, topology);
    EXPECT_EQ(moves.same_node, counts[static_cast<size_t>(kSameNode)]);
    EXPECT_EQ(moves.other_node, counts[static_cast<size_t>(kOtherNode)]);
  }
}

}  // namespace
}  // namespace switchyard
