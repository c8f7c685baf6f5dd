#include "engine/speculative/ngram_pace.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

constexpr int32_t kCost = kDraftUnit / 5;
constexpr int64_t kMost = 16;

TEST(NgramPaceTest, LongerNgramsGetMoreDrafts) {
  NgramPace pace;
  int64_t before = 0;
  for (int64_t matched = NgramIndex::kShortest; matched <= NgramIndex::kLongest; ++matched) {
    const int64_t limit = pace.Limit(matched, kCost, kMost);
    EXPECT_GE(limit, before) << matched;
    EXPECT_GE(limit, 1);
    before = limit;
  }
  EXPECT_GT(before, pace.Limit(NgramIndex::kShortest, kCost, kMost));
  EXPECT_EQ(pace.Limit(NgramIndex::kLongest + 10, kCost, kMost), before);
}

TEST(NgramPaceTest, CostlyRowsGetFewerDrafts) {
  NgramPace pace;
  int64_t before = kMost;
  for (int64_t sequences = 1; sequences <= 32; ++sequences) {
    const int64_t limit = pace.Limit(4, CostOfDraft(sequences), kMost);
    EXPECT_LE(limit, before) << sequences;
    before = limit;
  }
  EXPECT_EQ(before, 0);
}

TEST(NgramPaceTest, RightDraftsGetTheMost) {
  NgramPace pace;
  for (int i = 0; i < 30; ++i) pace.Observe(NgramIndex::kLongest, 4, 4);
  EXPECT_EQ(pace.Limit(NgramIndex::kLongest, kCost, kMost), kMost);
}

// Only the length that failed gets fewer drafts. In the end one of many steps has a draft.
TEST(NgramPaceTest, WrongDraftsBecomeRare) {
  NgramPace pace, fresh;
  int64_t drafts = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t limit = pace.Limit(3, kCost, kMost);
    pace.Observe(3, limit, 0);
    if (i >= 500) drafts += limit;
  }
  EXPECT_GE(drafts, 2);
  EXPECT_LE(drafts, 100);
  EXPECT_EQ(pace.Limit(4, kCost, kMost), fresh.Limit(4, kCost, kMost));
}

TEST(NgramPaceTest, TheOutcomeOfEachDraftCountsForItsOwnLength) {
  NgramPace pace, fresh;
  // The first draft is right after 4 tokens, the second one is wrong after 5.
  for (int i = 0; i < 20; ++i) pace.Observe(4, 3, 1);
  EXPECT_EQ(pace.Limit(4, kCost, kMost), 1);
  EXPECT_EQ(pace.Limit(5, kCost, kMost), 0);
  EXPECT_EQ(pace.Limit(6, kCost, kMost), fresh.Limit(6, kCost, kMost));
}

TEST(NgramPaceTest, NoDraftsAreAllowedByALimitOfZero) {
  EXPECT_EQ(NgramPace().Limit(8, kCost, 0), 0);
}

}  // namespace
}  // namespace switchyard
