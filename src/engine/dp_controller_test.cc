#include "engine/dp_controller.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "core/error.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using Method = LoadBalanceMethod;

std::vector<int> Open(DpController& controller, const std::vector<int64_t>& tokens) {
  std::vector<int> groups;
  groups.reserve(tokens.size());
  for (const int64_t n : tokens) groups.push_back(controller.Open(std::nullopt, n));
  return groups;
}

TEST(DpController, RoundRobinTakesTurnsWhateverTheLoad) {
  DpController controller(3, Method::kRoundRobin);
  EXPECT_THAT(Open(controller, {1000, 1, 1}), ElementsAre(0, 1, 2));
  EXPECT_EQ(controller.Open(2, 5), 2);  // does not advance the round-robin counter
  EXPECT_THAT(Open(controller, {1, 1}), ElementsAre(0, 1));
}

TEST(DpController, TotalRequestsTakesTheGroupWithTheFewest) {
  DpController controller(3, Method::kTotalRequests);
  EXPECT_THAT(Open(controller, {1, 100, 1, 1}), ElementsAre(0, 1, 2, 0));
  controller.Close(1, 100);
  EXPECT_THAT(Open(controller, {1, 1}), ElementsAre(1, 1));  // open requests: 2 1 1, then 2 2 1
}

TEST(DpController, TotalTokensCountsPromptsAndOutputsOfOpenRequests) {
  DpController controller(2, Method::kTotalTokens);
  EXPECT_THAT(Open(controller, {50, 30, 10}), ElementsAre(0, 1, 1));
  controller.Grow(1, 25);  // open tokens: 50, 65
  EXPECT_THAT(Open(controller, {5}), ElementsAre(0));
  controller.Close(1, 55);  // open tokens: 55, 10
  EXPECT_THAT(Open(controller, {5}), ElementsAre(1));
  EXPECT_EQ(controller.loads()[1].tokens, 15);
  EXPECT_EQ(controller.loads()[1].requests, 2);
}

TEST(DpController, EqualTokensGoByRequests) {
  DpController controller(2, Method::kTotalTokens);
  controller.Open(0, 5);
  controller.Open(0, 5);
  controller.Open(1, 10);
  EXPECT_EQ(controller.Open(std::nullopt, 1), 1);
}

TEST(DpController, PinsOnlyToGroupsThatExist) {
  DpController controller(2, Method::kRoundRobin);
  EXPECT_EQ(controller.Open(1, 1), 1);
  EXPECT_THROW(controller.Open(2, 1), Error);
  EXPECT_THROW(controller.Open(-1, 1), Error);
  EXPECT_EQ(controller.loads()[1].requests, 1);
}

TEST(DpController, NeverChoosesAnAbsentGroup) {
  std::mt19937 random(9);
  for (const Method method : {Method::kRoundRobin, Method::kTotalRequests, Method::kTotalTokens}) {
    for (int round = 0; round < 50; ++round) {
      const int groups = 2 + static_cast<int>(random() % 7);
      DpController controller(groups, method);
      std::vector<int> absent;
      for (int group = 1; group < groups; ++group) {
        if (random() % 2 == 0) absent.push_back(group);
      }
      controller.SetAbsent(absent);
      std::vector<int> opened(groups);
      for (int i = 0; i < 4 * groups; ++i) {
        std::optional<int32_t> pinned;
        if (i % 4 == 3) pinned = static_cast<int32_t>(random() % groups);
        const int group = controller.Open(pinned, 3);
        ++opened[group];
        if (pinned && !controller.absent(*pinned)) {
          EXPECT_EQ(group, *pinned);
        }
      }
      for (int group = 0; group < groups; ++group)
        EXPECT_EQ(opened[group] == 0, std::ranges::count(absent, group) == 1) << group;
      controller.SetAbsent({});  // the others are the least busy
      if (!absent.empty() && method != Method::kRoundRobin) {
        EXPECT_EQ(controller.Open(std::nullopt, 1), absent.front());
      }
    }
  }
}

TEST(DpController, NamesAreThoseOfTheFlag) {
  EXPECT_EQ(ParseLoadBalanceMethod("auto"), Method::kRoundRobin);
  EXPECT_EQ(ParseLoadBalanceMethod("round_robin"), Method::kRoundRobin);
  EXPECT_EQ(ParseLoadBalanceMethod("total_requests"), Method::kTotalRequests);
  EXPECT_EQ(ParseLoadBalanceMethod("total_tokens"), Method::kTotalTokens);
  EXPECT_THROW(ParseLoadBalanceMethod("fastest"), Error);
}

}  // namespace
}  // namespace switchyard
