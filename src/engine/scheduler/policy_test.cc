#include "engine/scheduler/policy.h"

#include <gmock/gmock.h>

#include <memory>
#include <numeric>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr int32_t kPageSize = 4;

class PolicyTest : public ::testing::Test {
 protected:
  static std::vector<int32_t> Run(int32_t first, int64_t length) {
    std::vector<int32_t> ids(length);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }
  // Puts the tokens into the cache.
  void Insert(const std::vector<int32_t>& tokens) {
    SequencePages pages;
    ASSERT_TRUE(cache_.Grow(static_cast<int64_t>(tokens.size()), pages));
    cache_.Release(tokens, pages);
  }
  Sequence* Add(std::vector<int32_t> tokens, int32_t max_new_tokens = 1) {
    EngineRequest request;
    request.id = sequences_.size() + 1;
    request.input_ids = std::move(tokens);
    request.sampling.max_new_tokens = max_new_tokens;
    sequences_.push_back(std::make_unique<Sequence>(std::move(request)));
    waiting_.PushBack(sequences_.back().get());
    return sequences_.back().get();
  }
  std::vector<uint64_t> Order(const std::string& policy, uint64_t step = 0) {
    OrderWaiting(ParseSchedulePolicy(policy), cache_, step, &waiting_);
    std::vector<uint64_t> ids;
    for (const Sequence* sequence : waiting_.InOrder()) ids.push_back(sequence->request.id);
    return ids;
  }

  KvCache cache_{64, kPageSize, true};
  std::vector<std::unique_ptr<Sequence>> sequences_;
  WaitingQueue waiting_;
};

TEST_F(PolicyTest, LongestPrefixFirst) {
  Insert(Run(0, 12));
  Add(Run(500, 9));
  Add(Run(0, 6));   // one cached page
  Add(Run(0, 13));  // three cached pages
  Add(Run(600, 9));
  EXPECT_THAT(Order("lpm"), ElementsAre(3, 2, 1, 4));
  EXPECT_THAT(Order("fcfs"), ElementsAre(3, 2, 1, 4));  // leaves the queue as it is
}

TEST_F(PolicyTest, LongestOutputFirst) {
  Add(Run(0, 5), 10);
  Add(Run(0, 5), 30);
  Add(Run(0, 5), 10);
  Add(Run(0, 5), 20);
  EXPECT_THAT(Order("lof"), ElementsAre(2, 4, 1, 3));
}

TEST_F(PolicyTest, DepthFirstByWeight) {
  std::vector<int32_t> left = Run(0, 8), right = Run(0, 4);
  right.insert(right.end(), {90, 91, 92, 93});
  Insert(left);
  Insert(right);
  Insert(Run(300, 8));
  const auto then = [](std::vector<int32_t> tokens, int32_t next) {
    tokens.push_back(next);
    return tokens;
  };
  Add(then(Run(300, 8), 1));
  Add(then(left, 1));
  Add(Run(700, 9));  // not cached
  Add(then(right, 1));
  Add(then(right, 2));
  // The three requests with the page that `left` and `right` share come first: two with `right`,
  // then one with `left`. Then the request that begins with 300, then the one that is not cached.
  EXPECT_THAT(Order("dfs-weight"), ElementsAre(4, 5, 2, 1, 3));
}

TEST_F(PolicyTest, RandomIsAPermutationThatDependsOnTheStepAlone) {
  for (int i = 0; i < 6; ++i) Add(Run(i, 5));
  const auto first = Order("random", 1);
  const auto second = Order("random", 2);
  EXPECT_THAT(first, UnorderedElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_NE(first, second);
  EXPECT_EQ(Order("random", 1), first);
}

TEST_F(PolicyTest, RetractedRequestsStayAtTheHead) {
  Add(Run(0, 5), 1)->admitted_before = true;
  Add(Run(0, 5), 10);
  Add(Run(0, 5), 30);
  EXPECT_THAT(Order("lof"), ElementsAre(1, 3, 2));
}

TEST_F(PolicyTest, WithoutAPrefixCacheTheyAreInOrderOfArrival) {
  KvCache plain(64, kPageSize, false);
  Add(Run(0, 5));
  Add(Run(0, 6));
  OrderWaiting(SchedulePolicy::kLpm, plain, 0, &waiting_);
  EXPECT_EQ(waiting_.Front()->request.id, 1);
  OrderWaiting(SchedulePolicy::kDfsWeight, plain, 0, &waiting_);
  EXPECT_EQ(waiting_.Front()->request.id, 1);
}

TEST(SchedulePolicyTest, UnknownNamesAreRefused) {
  EXPECT_THROW(ParseSchedulePolicy("best"), Error);
}

TEST(NewTokenEstimateTest, ConservativenessScalesTheShareUpToOne) {
  EngineRequest request;
  request.input_ids = {1};
  request.sampling.max_new_tokens = 1000;
  const Sequence sequence(std::move(request));
  EXPECT_EQ(NewTokenEstimate().For(sequence), 700);
  EXPECT_EQ(NewTokenEstimate(0.5).For(sequence), 350);
  EXPECT_EQ(NewTokenEstimate(0.0).For(sequence), 0);
  EXPECT_EQ(NewTokenEstimate(10.0).For(sequence), 1000);
}

}  // namespace
}  // namespace switchyard
