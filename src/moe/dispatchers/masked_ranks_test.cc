// The agreement on lost ranks. All ranks of a group are simulated on one thread.
#include "moe/dispatchers/masked_ranks.h"

#include <memory>

#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MaskedRanksTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  MaskedRanksTest() {
    const MeshShape mesh{kRanks, kRanks};
    const auto arena = SharedArena::Create(kRanks, RankComm::BytesPerRank(mesh) + 4096);
    for (int r = 0; r < kRanks; ++r) {
      comms_.push_back(RankComm::Create(arena, mesh, r));
      ranks_.push_back(std::make_unique<MaskedRanks>(*comms_[r], milliseconds(20)));
      flag_ = comms_[r]->memory->Allocate(sizeof(uint32_t));  // never raised
    }
  }

  // `rank` waits for `peer`'s stage and masks the peer if it is lost.
  void Wait(int rank, int peer, uint64_t stage, Deadline until) {
    ranks_[rank]->Wait(peer, stage, flag_, 1, until, "a test");
  }
  static Deadline Now() { return std::chrono::steady_clock::now(); }
  static Deadline Far() { return Now() + hours(1); }

  std::vector<std::unique_ptr<RankComm>> comms_;
  std::vector<std::unique_ptr<MaskedRanks>> ranks_;
  size_t flag_ = 0;
};

TEST_F(MaskedRanksTest, StagesAreNumberedAlike) {
  for (uint64_t stage = 1; stage < 4; ++stage)
    for (const auto& rank : ranks_) EXPECT_EQ(rank->Commit(), stage);
}

TEST_F(MaskedRanksTest, WhatIsCommittedCountsThoughNoFlagFollows) {
  ranks_[1]->Commit();
  Wait(0, 1, 1, Far());
  Wait(2, 1, 1, Now());
  EXPECT_TRUE(ranks_[0]->all_active() && ranks_[2]->all_active());
}

TEST_F(MaskedRanksTest, AllRanksAgreeOnTheLostRankAndTheStage) {
  ranks_[1]->Commit();
  Wait(0, 1, 2, Now());
  EXPECT_THAT(ranks_[0]->mask(), ElementsAre(1, 0, 1));
  // Rank 2 waits later than the others. It finds that stage 1 is committed, and it detects the loss
  // in stage 2 without waiting.
  Wait(2, 1, 1, Now());
  EXPECT_TRUE(ranks_[2]->active(1));
  Wait(2, 1, 2, Far());
  EXPECT_THAT(ranks_[2]->mask(), ElementsAre(1, 0, 1));
}

TEST_F(MaskedRanksTest, ALostRankDetectsItWhenItCommitsOrWaits) {
  ranks_[1]->Commit();
  Wait(0, 1, 2, Now());
  const auto expect_excluded = [](const auto& body) {
    try {
      body();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPeer);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 was excluded by the other ranks after 1 stages"));
    }
  };
  expect_excluded([&] { ranks_[1]->Commit(); });
  expect_excluded([&] { Wait(1, 2, 1, Far()); });
}

TEST_F(MaskedRanksTest, ARankDoesNotExcludeThoseAheadOfIt) {
  for (int stage = 0; stage < 3; ++stage) ranks_[0]->Commit();
  ranks_[1]->Commit();
  Wait(1, 0, 1, Now());
  EXPECT_TRUE(ranks_[1]->all_active());
  EXPECT_EQ(ranks_[0]->Commit(), 4u);
}

}  // namespace
}  // namespace switchyard
