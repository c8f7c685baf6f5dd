// Mapping of logical to physical experts: replicas, and the shared expert's slot.
#include "moe/router/physical_choice.h"

#include <algorithm>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;

TEST(ToPhysicalTest, IdsAreReplacedAndWeightsKept) {
  const TopK logical{.tokens = 2, .k = 2, .ids = {2, 0, -1, 1}, .weights = {0.5f, 0.25f, 0, 1}};
  TopK physical;
  ToPhysical(std::vector<int32_t>{7, 4, 5}, logical, &physical);
  EXPECT_EQ(physical.tokens, 2);
  EXPECT_EQ(physical.k, 2);
  EXPECT_THAT(physical.ids, ElementsAre(5, 7, -1, 4));
  EXPECT_EQ(physical.weights, logical.weights);
}

// Four experts on two ranks. The copies of the shared expert are physical experts 4 and 5.
TEST(AppendSharedSlotsTest, WorkedByHand) {
  const ExpertMap experts(4, 2, true);
  //                                    rank 0   1   0       of the routed rows
  TopK topk{.tokens = 3, .k = 1, .ids = {0, 2, 1}, .weights = {0.5f, 0.5f, 0.5f}};
  const std::vector<float> gates = {0.1f, 0.2f, 0.3f};
  AppendSharedSlots(experts, 2, /*this_rank=*/0, {}, gates.data(), &topk);
  EXPECT_EQ(topk.k, 2);
  // The ranks have 2 and 1 routed rows, so the first shared row goes to rank 1. Then they have 2
  // and 2, so the second shared row stays on this rank, rank 0. Then they have 3 and 2, so the
  // third one goes to rank 1.
  EXPECT_THAT(topk.ids, ElementsAre(0, 5, 2, 4, 1, 5));
  EXPECT_THAT(topk.weights, ElementsAre(0.5f, 0.1f, 0.5f, 0.2f, 0.5f, 0.3f));
}

TEST(AppendSharedSlotsTest, OfEqualRanksTheNearestIsTaken) {
  const ExpertMap experts(3, 3, true);
  const auto rank_of = [&](int this_rank, std::vector<int32_t> ids) {
    TopK topk{.tokens = 1, .k = static_cast<int>(ids.size()), .ids = {}};
    topk.ids = std::move(ids);
    topk.weights.assign(topk.ids.size(), 1.0f);
    AppendSharedSlots(experts, 3, this_rank, {}, nullptr, &topk);
    EXPECT_EQ(topk.weights.back(), 1.0f);
    return topk.ids.back() - 3;
  };
  EXPECT_EQ(rank_of(1, {-1, -1, -1}), 1);
  EXPECT_EQ(rank_of(1, {0, 1, 2}), 1);
  EXPECT_EQ(rank_of(1, {1, 0, -1}), 2);  // only rank 2 has no rows
  EXPECT_EQ(rank_of(0, {0, -1, -1}), 1);
  EXPECT_EQ(rank_of(2, {2, -1, -1}), 0);
}

// Ranks 1 and 2 have the same load. The second token's row goes to rank 2 anyway, and rank 1 would
// receive an additional row.
TEST(AppendSharedSlotsTest, OfEqualRanksOneThatTheRowVisitsBeatsTheLowest) {
  const ExpertMap experts(8, 4, true);  // two experts on each rank
  TopK topk{.tokens = 2, .k = 2, .ids = {0, 2, 1, 4}, .weights = {1, 1, 1, 1}};
  // Routed rows: two on rank 0, one on ranks 1 and 2, none on rank 3. The first shared row goes to
  // rank 3. Then ranks 1, 2 and 3 have one row each.
  AppendSharedSlots(experts, 4, /*this_rank=*/0, {}, nullptr, &topk);
  EXPECT_THAT(topk.ids, ElementsAre(0, 2, 8 + 3, 1, 4, 8 + 2));
}

TEST(AppendSharedSlotsTest, LostRanksGetNothing) {
  const ExpertMap experts(8, 4, /*shared_dispatched=*/true);
  TopK topk{.tokens = 6, .k = 1, .ids = {0, 0, 0, 0, 0, 0}, .weights = std::vector<float>(6, 1.0f)};
  const std::vector<uint8_t> active = {1, 0, 0, 1};
  AppendSharedSlots(experts, 4, /*this_rank=*/0, active, nullptr, &topk);
  for (int t = 0; t < 6; ++t) EXPECT_EQ(experts.Owner(topk.ids[2 * t + 1]), 3) << t;
}

// The number of rows of the most loaded rank must be minimal. Its lower bound over all assignments
// of the shared rows is the maximum of two values: the most routed rows of a rank, and an even
// share of all rows.
TEST(AppendSharedSlotsTest, TheMaximumLoadIsMinimal) {
  kernels::Random random(11);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random.Below(8)), k = 1 + random.Below(4);
    const int num_experts = k + static_cast<int>(random.Below(20));
    const ExpertMap experts(num_experts, ranks, true);
    TopK topk{.tokens = random.Below(30), .k = k};
    // In some batches only few experts are chosen.
    const int hot = random.Below(3) == 0 ? k : num_experts;
    for (int64_t i = 0; i < topk.tokens * k; ++i)
      topk.ids.push_back(static_cast<int32_t>(random.Below(hot + 1)) - 1);
    topk.weights.assign(topk.ids.size(), 1.0f);

    const std::vector<int32_t> routed = topk.ids;
    std::vector<int64_t> rows(ranks, 0);
    for (const int32_t id : routed)
      if (id >= 0) ++rows[experts.Owner(id)];
    const int64_t total = std::accumulate(rows.begin(), rows.end(), topk.tokens);
    const int64_t least_possible = std::max(std::ranges::max(rows), CeilDiv(total, ranks));

    AppendSharedSlots(experts, ranks, static_cast<int>(random.Below(ranks)), {}, nullptr, &topk);
    ASSERT_EQ(topk.k, k + 1);
    for (int64_t t = 0; t < topk.tokens; ++t) {
      for (int j = 0; j < k; ++j) ASSERT_EQ(topk.ids[t * (k + 1) + j], routed[t * k + j]);
      const int32_t shared = topk.ids[t * (k + 1) + k];
      ASSERT_GE(shared, num_experts);
      ASSERT_LT(shared, num_experts + ranks);
      ++rows[experts.Owner(shared)];
    }
    EXPECT_EQ(std::ranges::max(rows), least_possible);
  }
}

}  // namespace
}  // namespace switchyard
