#include "engine/speculative/forced_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace switchyard {
namespace {

constexpr int32_t kMost = 8;

// A sequence in which the first `right(limit)` drafts of each step are right.
struct Drafted {
  ForcedPace pace;
  DraftCounts counts;
  std::vector<int32_t> limits;

  void Step(ForcedAcceptance& acceptance, const std::function<int32_t(int32_t)>& right,
            int64_t sequences = 1) {
    const int32_t limit = acceptance.Limit(counts, sequences, kMost, pace);
    limits.push_back(limit);
    if (limit > 0) counts += {.steps = 1, .drafted = limit, .accepted = right(limit)};
  }
};

int32_t All(int32_t limit) { return limit; }
int32_t None(int32_t) { return 0; }

TEST(ForcedPaceTest, RightDraftsKeepTheMostDrafts) {
  ForcedAcceptance acceptance;
  Drafted sequence;
  for (int i = 0; i < 20; ++i) sequence.Step(acceptance, All);
  EXPECT_EQ(sequence.limits, std::vector<int32_t>(20, kMost));
}

TEST(ForcedPaceTest, WrongDraftsBecomeRare) {
  ForcedAcceptance acceptance;
  Drafted sequence;
  for (int i = 0; i < 300; ++i) sequence.Step(acceptance, None);
  EXPECT_EQ(sequence.limits.front(), kMost);
  const std::vector<int32_t> later(sequence.limits.begin() + 100, sequence.limits.end());
  EXPECT_LE(*std::ranges::max_element(later), 1);
  const auto trials = std::ranges::count(later, 1);  // later text may have another tokenization
  EXPECT_GE(trials, 4);
  EXPECT_LE(trials, 8);
}

// Rows cost more in a large batch.
TEST(ForcedPaceTest, ALargeBatchGetsFewerDrafts) {
  const auto half = [](int32_t limit) { return (limit + 1) / 2; };
  int64_t before = 1000;
  for (const int64_t sequences : {1, 8, 32, 1000}) {
    ForcedAcceptance acceptance;
    Drafted sequence;
    for (int i = 0; i < 100; ++i) sequence.Step(acceptance, half, sequences);
    EXPECT_LE(sequence.counts.drafted, before);
    before = sequence.counts.drafted;
  }
  ForcedAcceptance acceptance;
  Drafted sequence;
  for (int i = 0; i < 100; ++i) sequence.Step(acceptance, All, 1000);
  EXPECT_EQ(sequence.limits.back(), kMost);
}

TEST(ForcedPaceTest, AStepWithoutDraftsChangesNothing) {
  ForcedAcceptance acceptance;
  ForcedPace pace;
  EXPECT_EQ(acceptance.Limit({}, 1, kMost, pace), kMost);
  const DraftCounts counts = {.steps = 1, .drafted = 8, .accepted = 2};
  const int32_t limit = acceptance.Limit(counts, 1, kMost, pace);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(acceptance.Limit(counts, 1, kMost, pace), limit);
}

TEST(ForcedPaceTest, NewSequencesStartFromTheOthers) {
  ForcedAcceptance acceptance;
  for (int i = 0; i < 60; ++i) {
    Drafted sequence;
    for (int step = 0; step < 10; ++step) sequence.Step(acceptance, None);
  }
  Drafted careful;
  for (int step = 0; step < 100; ++step) careful.Step(acceptance, None);
  EXPECT_LE(careful.counts.drafted, 6);
  // Each sequence begins with a trial, so a change is noticed.
  for (int i = 0; i < 60; ++i) {
    Drafted sequence;
    for (int step = 0; step < 10; ++step) sequence.Step(acceptance, All);
  }
  Drafted later;
  later.Step(acceptance, All);
  EXPECT_EQ(later.limits[0], kMost);
}

}  // namespace
}  // namespace switchyard
