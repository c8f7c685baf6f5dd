#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "server/front/elastic_ranks.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

constexpr MeshShape kFour{.tp = 4, .ep = 4, .dp = 4};
constexpr MeshShape kShared{.tp = 8, .ep = 4, .dp = 2};  // MoE-TP 2, groups of 4

std::string Scaled(const ScaleRequest& request, const MeshShape& now) {
  return DescribeShape(ScaledShape(request, now, now));
}

std::string Refusal(const ScaleRequest& request, const MeshShape& now) {
  try {
    CheckScale(request, now);
    ScaledShape(request, now, now);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ScaleRequestTest, OmittedSizesKeepTheRatios) {
  EXPECT_EQ(Scaled({.ep = 2}, kFour), "tp 2, ep 2, dp 2");
  EXPECT_EQ(Scaled({.dp = 8}, kFour), "tp 8, ep 8, dp 8");
  EXPECT_EQ(Scaled({.tp = 1}, kFour), "tp 1, ep 1, dp 1");
  EXPECT_EQ(Scaled({.ep = 8}, kShared), "tp 16, ep 8, dp 4");
  EXPECT_EQ(Scaled({.dp = 1}, kShared), "tp 4, ep 2, dp 1");
  EXPECT_EQ(Scaled({.tp = 4, .ep = 4}, kShared), "tp 4, ep 4, dp 1");
  EXPECT_EQ(Scaled({.leave = {1, 3}}, kFour), "tp 2, ep 2, dp 2");
  EXPECT_EQ(Scaled({.leave = {1}, .come = 3}, kFour), "tp 6, ep 6, dp 6");
}

TEST(ScaleRequestTest, WithoutAttentionGroupsAndExpertParallelismThereAreNone) {
  EXPECT_EQ(Scaled({.tp = 4}, {.tp = 2}), "tp 4, ep 1, dp 1");
  EXPECT_EQ(Scaled({.ep = 4}, {.tp = 2, .ep = 2}), "tp 4, ep 4, dp 1");
  EXPECT_EQ(Scaled({.dp = 2}, {.tp = 1}), "tp 2, ep 2, dp 2");
}

TEST(ScaleRequestTest, ASingleRankGrowsToTheRatiosOfBefore) {
  EXPECT_EQ(DescribeShape(ScaledShape({.come = 1}, {.tp = 1}, kFour)), "tp 2, ep 2, dp 2");
}

TEST(ScaleRequestTest, TheWorldOfDenseLayersFollowsTheRanks) {
  const MeshShape now{.tp = 4, .ep = 4, .dp = 4, .dense_tp = 4};
  EXPECT_EQ(ScaledShape({.tp = 2}, now, now).dense_tp, 0);
  const MeshShape whole{.tp = 4, .ep = 4, .dp = 4, .dense_tp = 1};
  EXPECT_EQ(ScaledShape({.tp = 2}, whole, whole).dense_tp, 1);
}

TEST(ScaleRequestTest, RefusalsNameTheField) {
  EXPECT_THAT(Refusal({.tp = 6}, kShared),
              HasSubstr("new_tp_size gives 6 ranks, and 4 ranks form"));
  EXPECT_THAT(Refusal({.tp = 7}, kShared), HasSubstr("2 ranks share an expert"));
  EXPECT_THAT(Refusal({.ep = 1000000}, kShared), HasSubstr("new_ep_size gives 2000000 ranks"));
  EXPECT_THAT(Refusal({.leave = {4}}, kFour), HasSubstr("leave has 4, want ranks 0 to 3"));
  EXPECT_THAT(Refusal({.restart = {1, 1}}, kFour), HasSubstr("restart has 1 twice"));
  EXPECT_THAT(Refusal({.leave = {0, 1, 2, 3}}, kFour), HasSubstr("leave removes all 4 ranks"));
  EXPECT_THAT(Refusal({}, kFour), HasSubstr("want one of"));
  EXPECT_THAT(Refusal({.tp = 2, .restart_all = true}, kFour), HasSubstr("want one of"));
  EXPECT_THAT(Refusal({.ep = 2, .leave = {1}}, kFour), HasSubstr("want one of"));
}

TEST(ScaleRequestTest, OutputsStayEqualWithWholeAttentionAndDenseLayersOnEachRank) {
  const MoeOptions moe{.a2a_backend = "deepep"};
  MeshShape two{.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1}, four = two;
  four.tp = four.ep = four.dp = 4;
  EXPECT_TRUE(OutputsStayEqual(two, four, moe));
  EXPECT_FALSE(OutputsStayEqual(two, four, {}));  // --moe-a2a-backend none
  EXPECT_TRUE(OutputsStayEqual(four, four, {}));
  four.dp = 2;
  EXPECT_FALSE(OutputsStayEqual(two, four, moe));
  four.dp = 4;
  four.dense_tp = 0;
  EXPECT_FALSE(OutputsStayEqual(two, four, moe));
}

}  // namespace
}  // namespace switchyard
