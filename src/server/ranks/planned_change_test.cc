// Planned changes of the ranks.
#include "server/ranks/planned_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ranks/test_supervisor.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlannedChangeTest : public SupervisorTest {
 protected:
  void StartServing() {
    Start({.restarts = true});
    supervisor->Watch();
    id = Submit(30);
    Host(1).Receive();
    Host(1).Send(Token(id, 11));
    WaitForTokens(1);
  }
  bool Begin(PlannedChange change) {
    change.what = "the change";
    return supervisor->Begin(std::move(change),
                             [this](const ChangeOutcome& o) { outcome.set_value(o); });
  }
  ChangeOutcome Outcome() {
    auto future = outcome.get_future();
    EXPECT_EQ(future.wait_for(kLong), std::future_status::ready);
    return future.get();
  }
  // The new ranks load, and continue the request after these tokens.
  void Continue(size_t epoch, const std::vector<int32_t>& after) {
    Host(epoch).Send(RankReady{});
    const auto messages = Host(epoch).Receive();
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_EQ(std::get<EngineRequest>(messages[0]).output_ids, after);
  }

  uint64_t id = 0;
  std::promise<ChangeOutcome> outcome;
};

TEST_F(PlannedChangeTest, RanksRestartOneAfterAnother) {
  StartServing();
  ASSERT_TRUE(Begin({.rounds = {{0}, {1}}}));
  Continue(2, {11});
  Host(2).Send(Token(id, 12));  // the next round waits for an output
  Continue(3, {11, 12});
  const ChangeOutcome done = Outcome();
  EXPECT_THAT(done.error, IsEmpty());
  EXPECT_EQ(done.pauses.size(), 2u);
  EXPECT_THAT(retired, ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_EQ(front.history().deaths, 0);
  EXPECT_EQ(front.history().changes, 2);
  EXPECT_EQ(front.history().epoch, 3);
  Host(3).Send(Token(id, 13));
  WaitForTokens(3);
  EXPECT_THAT(tokens, ElementsAre(11, 12, 13));
}

TEST_F(PlannedChangeTest, AnotherLayoutLoadsBesideThePresentRanks) {
  StartServing();
  const auto layout = std::make_shared<FakeLayout>(*this, 2);
  ASSERT_TRUE(Begin({.layout = layout, .beside = true}));
  EXPECT_FALSE(Begin({.rounds = {{0}}}));
  Host(2);
  Host(1).Send(Token(id, 12));  // the present ranks still serve
  WaitForTokens(2);
  EXPECT_EQ(front.history().paused_for, 0);
  Continue(2, {11, 12});
  const ChangeOutcome done = Outcome();
  EXPECT_THAT(done.error, IsEmpty());
  EXPECT_EQ(done.pauses.size(), 1u);
  EXPECT_EQ(front.open_by_group().size(), 2u);
  // The new layout restarts like the first one.
  Host(2).End("rank 1 was killed", kKilled);
  Continue(3, {11, 12});
  EXPECT_EQ(front.history().deaths, 1);
}

TEST_F(PlannedChangeTest, IfTheRanksBesideDoNotLoadThePresentOnesStay) {
  StartServing();
  const auto layout = std::make_shared<FakeLayout>(*this, 2);
  layout->fails = true;
  ASSERT_TRUE(Begin({.layout = layout, .beside = true}));
  EXPECT_THAT(Outcome().error, HasSubstr("no memory"));
  Host(1).Send(Token(id, 12));
  WaitForTokens(2);
  EXPECT_EQ(front.history().epoch, 1);
  EXPECT_EQ(front.history().changes, 0);
}

TEST_F(PlannedChangeTest, AnEndDuringTheLoadEndsTheChangeAndRestartsTheRanks) {
  StartServing();
  ASSERT_TRUE(Begin({.layout = std::make_shared<FakeLayout>(*this, 2), .beside = true}));
  Host(2);
  Host(1).End("rank 1 was killed", kKilled);
  const ChangeOutcome failed = Outcome();
  EXPECT_THAT(failed.error, HasSubstr("try again"));
  EXPECT_EQ(failed.kind, ErrorKind::kUnavailable);
  Continue(3, {11});
  EXPECT_EQ(front.open_by_group().size(), 1u);
}

TEST_F(PlannedChangeTest, AnEndBeforeTheNewRanksHaveJoinedEndsTheChange) {
  StartServing();
  const auto layout = std::make_shared<FakeLayout>(*this, 2);
  layout->joins = false;
  ASSERT_TRUE(Begin({.layout = layout, .beside = true}));
  Host(2);
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_THAT(Outcome().error, HasSubstr("try again"));
  Continue(3, {11});
}

TEST_F(PlannedChangeTest, ThePresentRanksRestartWhileDiscardedOnesEnd) {
  StartServing();
  const auto layout = std::make_shared<FakeLayout>(*this, 2);
  std::promise<void> ended;
  layout->ended = ended.get_future().share();
  ASSERT_TRUE(Begin({.layout = layout, .beside = true}));
  Host(2);
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_THAT(Outcome().error, HasSubstr("try again"));
  Continue(3, {11});
  EXPECT_EQ(layout->releases, 0);
  ended.set_value();
  EXPECT_TRUE(supervisor->Shutdown(10s));
  EXPECT_EQ(layout->releases, 1);
}

TEST_F(PlannedChangeTest, WithoutMemoryForBothThePresentRanksEndFirst) {
  StartServing();
  ASSERT_TRUE(Begin({.layout = std::make_shared<FakeLayout>(*this, 3)}));
  Continue(2, {11});
  EXPECT_THAT(Outcome().error, IsEmpty());
  EXPECT_EQ(front.open_by_group().size(), 3u);
}

TEST_F(PlannedChangeTest, IfTheNextRanksDoNotLoadTheLastLayoutStartsAgain) {
  StartServing();
  const auto layout = std::make_shared<FakeLayout>(*this, 2);
  layout->fails = true;
  ASSERT_TRUE(Begin({.layout = layout}));
  Continue(2, {11});
  EXPECT_THAT(Outcome().error, HasSubstr("no memory"));
  EXPECT_EQ(layout->releases, 1);
  EXPECT_EQ(front.open_by_group().size(), 1u);
  EXPECT_EQ(front.history().deaths, 0);
}

TEST_F(PlannedChangeTest, ARankThatFailsDuringAPlannedRestartIsADeath) {
  StartServing();
  failure = RankHost::Ending{.failed = {1}, .batch = std::vector<uint64_t>{id}};
  ASSERT_TRUE(Begin({.rounds = {{0}}}));
  Host(2).Send(RankReady{});
  const auto messages = Host(2).Receive();
  ASSERT_EQ(messages.size(), 1u);
  // A suspect runs alone first.
  EXPECT_LT(std::get<EngineRequest>(messages[0]).sampling.max_new_tokens, 30);
  EXPECT_THAT(Outcome().error, IsEmpty());
  EXPECT_EQ(front.history().deaths, 1);
}

TEST_F(PlannedChangeTest, ARankThatIsKilledDuringAPlannedRestartIsADeath) {
  StartServing();
  failure = kKilled;
  ASSERT_TRUE(Begin({.rounds = {{0}}}));
  Continue(2, {11});
  EXPECT_THAT(Outcome().error, IsEmpty());
  EXPECT_EQ(front.history().deaths, 1);
}

TEST_F(PlannedChangeTest, ACancelledChangeRestartsNoMoreRanks) {
  StartServing();
  ASSERT_TRUE(Begin({.rounds = {{0}, {1}}}));
  Host(2);
  supervisor->CancelChange();
  Continue(2, {11});
  const ChangeOutcome cancelled = Outcome();
  EXPECT_THAT(cancelled.error, HasSubstr("shutting down"));
  EXPECT_EQ(cancelled.kind, ErrorKind::kUnavailable);
  EXPECT_EQ(cancelled.pauses.size(), 1u);
  EXPECT_FALSE(Begin({.rounds = {{0}}}));
  // Ranks that end are still restarted.
  Host(2).End("rank 1 was killed", kKilled);
  Continue(3, {11});
}

TEST_F(PlannedChangeTest, ACancelledChangeEndsTheLoadBesideThePresentRanks) {
  StartServing();
  const auto layout = std::make_shared<FakeLayout>(*this, 2);
  layout->joins = false;
  ASSERT_TRUE(Begin({.layout = layout, .beside = true}));
  Host(2);
  supervisor->CancelChange();
  EXPECT_THAT(Outcome().error, HasSubstr("shutting down"));
  Host(1).Send(Token(id, 12));
  WaitForTokens(2);
  EXPECT_EQ(front.history().deaths, 0);
}

TEST_F(PlannedChangeTest, TheEndOfTheServerEndsTheChange) {
  StartServing();
  ASSERT_TRUE(Begin({.layout = std::make_shared<FakeLayout>(*this, 2)}));
  Host(2);
  EXPECT_TRUE(supervisor->Shutdown(10s));
  EXPECT_THAT(Outcome().error, HasSubstr("shutting down"));
  EXPECT_FALSE(Begin({.rounds = {{0}}}));
}

TEST_F(PlannedChangeTest, WithoutRestartsThereAreNoChanges) {
  Start({.restarts = false});
  supervisor->Watch();
  EXPECT_FALSE(Begin({.rounds = {{0}}}));
}

}  // namespace
}  // namespace switchyard
