// The token partition: the worked example, groups that do not nest, and invariants on every mesh.
#include "moe/dispatchers/token_partition.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

TokenPartition SpreadOf(const MeshShape& shape, int rank, const std::vector<int64_t>& tokens) {
  return TokenPartition(Mesh(shape, rank), tokens);
}

Pairs OwnOfAll(const MeshShape& shape, const std::vector<int64_t>& tokens) {
  const TokenPartition partition = SpreadOf(shape, 0, tokens);
  Pairs own;
  for (int rank = 0; rank < shape.tp; ++rank)
    own.emplace_back(partition.own(rank).begin, partition.own(rank).end);
  return own;
}

TEST(TokenPartitionTest, WorkedExample) {
  const MeshShape shape{.tp = 4, .ep = 2, .dp = 2};
  EXPECT_EQ(OwnOfAll(shape, {5, 2}), Pairs({{0, 3}, {3, 5}, {0, 1}, {1, 2}}));
  for (int rank = 0; rank < 4; ++rank) {
    const TokenPartition partition = SpreadOf(shape, rank, {5, 2});
    EXPECT_TRUE(partition.lane_is_local());
    EXPECT_EQ(partition.lane_begin(), 0);
    EXPECT_EQ(partition.lane_tokens(), rank < 2 ? 5 : 2);
    EXPECT_EQ(partition.own_in_lane(), std::vector<int64_t>({0, 3, 0, 1})[rank]);
    EXPECT_EQ(partition.longest_lane(), 5);
    EXPECT_EQ(partition.total(), 7);
  }
}

// MoE-TP groups {0,1,2} {3,4,5} and attention groups {0,1} {2,3} {4,5}: a lane has tokens of two
// groups.
TEST(TokenPartitionTest, LanesOverSeveralAttentionGroups) {
  const MeshShape shape{.tp = 6, .ep = 2, .dp = 3};
  const std::vector<int64_t> tokens = {3, 4, 0};
  EXPECT_EQ(OwnOfAll(shape, tokens), Pairs({{0, 2}, {2, 3}, {0, 2}, {2, 4}, {0, 0}, {0, 0}}));
  for (int rank = 0; rank < 6; ++rank) {
    const TokenPartition partition = SpreadOf(shape, rank, tokens);
    EXPECT_FALSE(partition.lane_is_local());
    EXPECT_EQ(partition.lane_tokens(), rank < 3 ? 5 : 2);
    EXPECT_EQ(partition.own_in_lane(), std::vector<int64_t>({0, 2, 3, 0, 2, 2})[rank]);
    EXPECT_EQ(partition.longest_lane(), 5);
  }
}

TEST(TokenPartitionTest, OneAttentionGroupIsPartitionedOverAllRanks) {
  const MeshShape shape{.tp = 4, .ep = 2};
  EXPECT_EQ(OwnOfAll(shape, {6}), Pairs({{0, 2}, {2, 4}, {4, 5}, {5, 6}}));
  const TokenPartition second = SpreadOf(shape, 3, {6});
  EXPECT_TRUE(second.lane_is_local());
  EXPECT_EQ(second.lane_begin(), 4);
  EXPECT_EQ(second.lane_tokens(), 2);
}

std::vector<int> Divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

// Each token has one owner, a lane is the union of its ranks' own tokens, ranks agree on the
// longest lane, and no lane exceeds the buffer size.
TEST(TokenPartitionTest, IsConsistentOnEveryMesh) {
  for (int tp = 1; tp <= 15; ++tp) {
    for (const int ep : Divisors(tp)) {
      for (const int dp : Divisors(tp)) {
        const MeshShape shape{.tp = tp, .ep = ep, .dp = dp};
        for (int64_t most = 1; most <= 9; ++most) {
          std::vector<int64_t> tokens(dp);
          for (int g = 0; g < dp; ++g) tokens[g] = (most * (g + 3)) % (most + 1);
          tokens[static_cast<size_t>(most) % dp] = most;
          SCOPED_TRACE(::testing::Message() << "tp " << tp << " ep " << ep << " dp " << dp);

          const TokenPartition first = SpreadOf(shape, 0, tokens);
          std::vector<int64_t> next(dp, 0);
          for (int rank = 0; rank < tp; ++rank) {
            int64_t& begin = next[rank / (tp / dp)];
            ASSERT_EQ(first.own(rank).begin, begin);
            begin = first.own(rank).end;
          }
          ASSERT_EQ(next, tokens);

          int64_t longest = 0, lanes = 0;
          for (int rank = 0; rank < tp; ++rank) {
            const TokenPartition partition = SpreadOf(shape, rank, tokens);
            const int moe_tp = tp / ep, lane_first = rank / moe_tp * moe_tp;
            int64_t lane = 0, before = 0;
            for (int r = lane_first; r < lane_first + moe_tp; ++r) {
              if (r == rank) before = lane;
              lane += first.own(r).size();
            }
            ASSERT_EQ(partition.lane_tokens(), lane);
            ASSERT_EQ(partition.own_in_lane(), before);
            ASSERT_EQ(partition.longest_lane(), first.longest_lane());
            ASSERT_LE(lane, MaxLaneTokens(shape, most));
            longest = std::max(longest, lane);
            if (rank == lane_first) lanes += lane;
          }
          ASSERT_EQ(first.longest_lane(), longest);
          ASSERT_EQ(lanes, first.total());
        }
      }
    }
  }
}

// Own tokens 4 to 6 of the group are tokens 2 to 4 of the lane.
TEST(TokenPartitionTest, OwnTokensOfARound) {
  struct Case {
    Range round;
    std::vector<int64_t> want;  // begin and end in the round, first token in the group
  };
  for (const auto& [round, want] : {Case{{0, 9}, {2, 5, 4}}, Case{{0, 4}, {2, 4, 4}},
                                    Case{{4, 8}, {0, 1, 6}}, Case{{3, 4}, {0, 1, 5}}}) {
    const OwnTokens own = OwnInRound({4, 7}, 2, round);
    EXPECT_EQ(std::vector<int64_t>({own.in_round.begin, own.in_round.end, own.in_group}), want);
  }
  for (const Range round : {Range{0, 2}, Range{5, 9}})
    EXPECT_EQ(OwnInRound({4, 7}, 2, round).in_round.size(), 0);
}

TEST(TokenPartitionTest, LanesAreNoLongerThanWhatRanksOwn) {
  EXPECT_EQ(MaxLaneTokens({.tp = 4, .ep = 4}, 100), 25);
  EXPECT_EQ(MaxLaneTokens({.tp = 4, .ep = 4}, 101), 26);
  EXPECT_EQ(MaxLaneTokens({.tp = 4, .ep = 4, .dp = 4}, 100), 100);
  EXPECT_EQ(MaxLaneTokens({.tp = 4, .ep = 2, .dp = 4}, 100), 200);
  // MaxLaneTokens is not 4 · ceil(3 / 4).
  EXPECT_EQ(MaxLaneTokens({.tp = 4, .ep = 1, .dp = 1}, 3), 3);
}

}  // namespace
}  // namespace switchyard
