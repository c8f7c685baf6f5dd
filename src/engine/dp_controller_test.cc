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
  for (const Method method :
       {Method::kRoundRobin, Method::kTotalRequests, Method::kTotalTokens, Method::kCacheAware}) {
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

// A prompt of `size` random tokens.
std::vector<int32_t> RandomPrompt(std::mt19937& random, size_t size) {
  std::vector<int32_t> ids(size);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 150'000);
  return ids;
}

// Opens a request without a pinned group.
int OpenPrompt(DpController& controller, const std::vector<int32_t>& ids,
               std::string_view salt = "") {
  return controller.Open(std::nullopt, std::ssize(ids), {.ids = ids, .cache_salt = salt});
}

// Opens a request and ends it at once.
int RunPrompt(DpController& controller, const std::vector<int32_t>& ids,
              std::string_view salt = "") {
  const int group = OpenPrompt(controller, ids, salt);
  controller.Close(group, std::ssize(ids));
  return group;
}

TEST(DpController, CacheAwareRepeatsAPromptInItsGroup) {
  std::mt19937 random(3);
  DpController controller(4, Method::kCacheAware);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int> groups, requests(4);
  for (int i = 0; i < 80; ++i) {
    prompts.push_back(RandomPrompt(random, 100));
    groups.push_back(RunPrompt(controller, prompts.back()));
    ++requests[groups.back()];
  }
  for (const int n : requests) EXPECT_EQ(n, 20);  // prompts of equal length
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(RunPrompt(controller, prompts[i]), groups[i]);
    const std::vector<int32_t> more = RandomPrompt(random, 150);  // the conversation continues
    prompts[i].insert(prompts[i].end(), more.begin(), more.end());
    EXPECT_EQ(RunPrompt(controller, prompts[i]), groups[i]);
  }
  // A pinned request takes its prompt to another group.
  const int other = (groups[0] + 1) % 4;
  controller.Close(controller.Open(other, 250, {.ids = prompts[0]}), 250);
  EXPECT_EQ(RunPrompt(controller, prompts[0]), other);
}

TEST(DpController, CacheAwareBalancesACommonPrefix) {
  std::mt19937 random(4);
  for (const int groups : {2, 3, 8}) {
    DpController controller(groups, Method::kCacheAware);
    const std::vector<int32_t> common = RandomPrompt(random, 300);
    for (int i = 0; i < 40 * groups; ++i) {
      std::vector<int32_t> ids = common;
      const std::vector<int32_t> own = RandomPrompt(random, 20);
      ids.insert(ids.end(), own.begin(), own.end());
      OpenPrompt(controller, ids);
      const auto [least, most] =
          std::ranges::minmax(controller.loads(), {}, &DpController::Load::requests);
      EXPECT_LE(most.requests - least.requests, 5);
    }
  }
}

// A prefix that all groups have computed, before prompts that differ in their first own token.
TEST(DpController, CacheAwareSpreadsAPrefixOfAllGroups) {
  std::mt19937 random(8);
  for (const int groups : {2, 3, 8}) {
    DpController controller(groups, Method::kCacheAware);
    const std::vector<int32_t> common = RandomPrompt(random, 300);
    for (int group = 0; group < groups; ++group) controller.Open(group, 300, {.ids = common});
    for (int i = 0; i < 40 * groups; ++i) {
      std::vector<int32_t> ids = common;
      ids.push_back(i);
      const std::vector<int32_t> own = RandomPrompt(random, 20);
      ids.insert(ids.end(), own.begin(), own.end());
      OpenPrompt(controller, ids);
      const auto [least, most] =
          std::ranges::minmax(controller.loads(), {}, &DpController::Load::requests);
      EXPECT_LE(most.requests - least.requests, 1);
    }
  }
}

TEST(DpController, CacheAwareSendsNewPromptsToTheLeastBusyGroup) {
  std::mt19937 random(9);
  DpController controller(2, Method::kCacheAware);
  EXPECT_EQ(OpenPrompt(controller, RandomPrompt(random, 10)), 0);
  EXPECT_EQ(OpenPrompt(controller, RandomPrompt(random, 1000)), 1);
  EXPECT_EQ(OpenPrompt(controller, RandomPrompt(random, 10)), 0);  // which has fewer bytes
  EXPECT_EQ(OpenPrompt(controller, RandomPrompt(random, 10)), 1);  // fewer requests
}

TEST(DpController, CacheAwareSharesNoPrefixesBetweenSalts) {
  std::mt19937 random(5);
  DpController controller(2, Method::kCacheAware);
  const std::vector<int32_t> ids = RandomPrompt(random, 10);
  EXPECT_EQ(RunPrompt(controller, ids, "a tenant"), 0);
  EXPECT_EQ(RunPrompt(controller, ids, "another tenant"), 1);
  EXPECT_EQ(RunPrompt(controller, ids, "a tenant"), 0);
  EXPECT_EQ(RunPrompt(controller, ids, "another tenant"), 1);
}

TEST(DpController, CacheAwareForgetsCachesThatAreGone) {
  std::mt19937 random(6);
  DpController controller(2, Method::kCacheAware);
  const std::vector<int32_t> first = RandomPrompt(random, 50), second = RandomPrompt(random, 50);
  EXPECT_EQ(RunPrompt(controller, first), 0);
  EXPECT_EQ(RunPrompt(controller, second), 1);
  controller.ForgetPrompts();
  EXPECT_EQ(RunPrompt(controller, second), 0);
  EXPECT_EQ(RunPrompt(controller, first), 1);

  const std::vector<int> absent = {0};
  controller.SetAbsent(absent);
  EXPECT_EQ(RunPrompt(controller, second), 1);
  controller.SetAbsent({});
  EXPECT_EQ(RunPrompt(controller, first), 1);  // group 1 has kept its prompts
  EXPECT_EQ(RunPrompt(controller, second), 1);

  controller.Reset(1);
  EXPECT_EQ(RunPrompt(controller, second), 0);
  controller.Reset(2);
  EXPECT_EQ(RunPrompt(controller, second), 0);
  EXPECT_EQ(RunPrompt(controller, first), 1);
}

TEST(DpController, NamesAreThoseOfTheFlag) {
  for (const bool caches : {false, true}) {
    EXPECT_EQ(ParseLoadBalanceMethod("round_robin", caches), Method::kRoundRobin);
    EXPECT_EQ(ParseLoadBalanceMethod("total_requests", caches), Method::kTotalRequests);
    EXPECT_EQ(ParseLoadBalanceMethod("total_tokens", caches), Method::kTotalTokens);
    EXPECT_THROW(ParseLoadBalanceMethod("fastest", caches), Error);
  }
  EXPECT_EQ(ParseLoadBalanceMethod("auto", true), Method::kCacheAware);
  EXPECT_EQ(ParseLoadBalanceMethod("auto", false), Method::kRoundRobin);
  EXPECT_EQ(ParseLoadBalanceMethod("cache_aware", true), Method::kCacheAware);
  EXPECT_THROW(ParseLoadBalanceMethod("cache_aware", false), Error);
}

}  // namespace
}  // namespace switchyard
