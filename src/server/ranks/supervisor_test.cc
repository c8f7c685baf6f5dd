// Restarts after the end of a rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ranks/test_supervisor.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(SupervisorTest, NewRanksContinueTheRequests) {
  Start({.restarts = true});
  supervisor->Watch();
  const uint64_t id = Submit(9);
  Host(1).Receive();
  Host(1).Send(Token(id, 11));
  Host(1).Send(Token(id, 12));
  WaitForTokens(2);
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).Send(RankReady{});
  const auto messages = Host(2).Receive();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(std::get<EngineRequest>(messages[0]).output_ids, ElementsAre(11, 12));
  Host(2).Send(Token(id, 13));
  WaitForTokens(3);
  EXPECT_THAT(tokens, ElementsAre(11, 12, 13));
  EXPECT_EQ(front.history().epoch, 2);
  EXPECT_TRUE(supervisor->Shutdown(10s));
}

TEST_F(SupervisorTest, RanksThatAreKilledWhileTheyLoadAreRestarted) {
  Start({.restarts = true});
  supervisor->Watch();
  const uint64_t id = Submit(9);
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).End("rank 0 was killed", kKilled);
  Host(3).Send(RankReady{});
  EXPECT_EQ(std::get<EngineRequest>(Host(3).Receive().at(0)).id, id);
  EXPECT_EQ(front.history().deaths, 2);
  EXPECT_EQ(front.history().epoch, 2);
}

// A rank may end while it loads because the machine lacks memory, so loading is tried again.
// --max-rank-deaths limits the number of attempts.
TEST_F(SupervisorTest, RanksThatEndByThemselvesWhileTheyLoadAreRestarted) {
  Start({.restarts = true, .deaths = {.count = 3, .window = 60s}});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).End("rank 1 ended with exit code 0", kFailed);
  Host(3).Send(RankReady{});
  while (front.history().epoch < 2) std::this_thread::yield();
  EXPECT_EQ(front.history().deaths, 2);
  Host(3).End("rank 1 was killed", kKilled);
  Host(4).End("rank 1 ended with exit code 1", kFailed);
  EXPECT_THAT(Lost(), AllOf(HasSubstr("exit code 0"), HasSubstr("exit code 1")));
}

// Three ranks, each of which is an attention group.
class AbsentRanksTest : public SupervisorTest {
 protected:
  AbsentRanksTest() : SupervisorTest(3) {}
  // The ranks of an epoch load. Returns the groups of the requests that they then receive.
  std::vector<int32_t> Begin(size_t epoch) {
    Host(epoch).Send(RankReady{});
    std::vector<int32_t> sent;
    for (const ControlMessage& message : Host(epoch).Receive())
      sent.push_back(std::get<EngineRequest>(message).group.value_or(-1));
    return sent;
  }
};

TEST_F(AbsentRanksTest, ALostRankReturnsWhenItHasLoaded) {
  Start({.restarts = true});
  supervisor->Watch();
  const uint64_t id = Submit(9);
  for (int i = 0; i < 2; ++i) Submit(9);
  absent = {1};
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_THAT(Begin(2), ElementsAre(0, 2, 2));
  EXPECT_EQ(front.history().absent, 1);
  // A planned change waits until no rank is absent.
  std::promise<ChangeOutcome> done;
  EXPECT_TRUE(supervisor->Begin({.what = "the planned restart of rank 0", .rounds = {{0}}},
                                [&](const ChangeOutcome& outcome) { done.set_value(outcome); }));
  Host(2).Send(Token(id, 11));
  WaitForTokens(1);
  absent = {};
  Host(2).absent_have_loaded = true;
  Host(3).Send(RankReady{});  // then the planned restart begins
  EXPECT_THAT(Begin(4), ElementsAre(0, 2, 2));
  EXPECT_EQ(done.get_future().get().error, "");
  EXPECT_EQ(front.history().absent, 0);
  EXPECT_EQ(front.history().deaths, 1);
  EXPECT_THAT(retired, ElementsAre(ElementsAre(), ElementsAre(0)));
}

// A planned restart of each rank: the others serve while its new process loads.
TEST_F(AbsentRanksTest, TheOthersServeDuringAPlannedRestart) {
  Start({.restarts = true});
  supervisor->Watch();
  const uint64_t id = Submit(9);
  for (int i = 0; i < 2; ++i) Submit(9);
  Host(1).Receive();
  absent = {1};
  std::promise<ChangeOutcome> done;
  ASSERT_TRUE(supervisor->Begin({.what = "the planned restart of rank 1, 2", .rounds = {{1}, {2}}},
                                [&](const ChangeOutcome& outcome) { done.set_value(outcome); }));
  EXPECT_THAT(Begin(2), ElementsAre(0, 2, 2));
  EXPECT_EQ(front.history().absent, 1);
  Host(2).Send(Token(id, 11));
  WaitForTokens(1);
  absent = {2};
  Host(2).absent_have_loaded = true;
  EXPECT_THAT(Begin(3), ElementsAre(0, 2, 2));  // all ranks
  EXPECT_EQ(front.history().absent, 0);
  Host(3).Send(Token(id, 12));  // then the next restart begins
  EXPECT_THAT(Begin(4), ElementsAre(0, 0, 1));
  // The rank that serves ends before the other one has loaded.
  absent = {};
  Host(4).End("rank 0 was killed", kKilled);
  EXPECT_THAT(Begin(5), ElementsAre(0, 0, 1));
  const ChangeOutcome outcome = done.get_future().get();
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.pauses.size(), 3u);
  EXPECT_EQ(front.history().deaths, 1);
  EXPECT_THAT(retired, ElementsAre(ElementsAre(1), ElementsAre(), ElementsAre(2)));
}

// Between two rounds a rank ends. The next round waits for it: otherwise it could restart the only
// rank that serves.
TEST_F(AbsentRanksTest, ARankThatEndsBetweenTwoRestartsReturnsFirst) {
  Start({.restarts = true});
  supervisor->Watch();
  for (int i = 0; i < 3; ++i) Submit(9);
  Host(1).Receive();
  absent = {1};
  std::promise<ChangeOutcome> done;
  ASSERT_TRUE(supervisor->Begin({.what = "the planned restart of rank 1, 2", .rounds = {{1}, {2}}},
                                [&](const ChangeOutcome& outcome) { done.set_value(outcome); }));
  Begin(2);
  absent = {0};
  Host(2).absent_have_loaded = true;
  Begin(3);  // all ranks; the next restart waits for an output
  Host(3).End("rank 0 was killed", kKilled);
  EXPECT_THAT(Begin(4), Not(Contains(0)));
  absent = {};
  Host(4).absent_have_loaded = true;
  Host(5).Send(RankReady{});  // all ranks; then the next restart begins
  Begin(6);
  const ChangeOutcome outcome = done.get_future().get();
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.pauses.size(), 4u);
  EXPECT_EQ(front.history().deaths, 1);
  EXPECT_THAT(retired, ElementsAre(ElementsAre(1), ElementsAre(), ElementsAre(), ElementsAre(2)));
}

// A shutdown does not wait for the rank that loads.
TEST_F(AbsentRanksTest, ACancelledRestartLeavesTheAbsentRankToLoad) {
  Start({.restarts = true});
  supervisor->Watch();
  for (int i = 0; i < 3; ++i) Submit(9);
  Host(1).Receive();
  absent = {1};
  std::promise<ChangeOutcome> done;
  ASSERT_TRUE(supervisor->Begin({.what = "the planned restart of rank 1", .rounds = {{1}}},
                                [&](const ChangeOutcome& outcome) { done.set_value(outcome); }));
  EXPECT_THAT(Begin(2), ElementsAre(0, 2, 2));
  supervisor->CancelChange();
  EXPECT_THAT(done.get_future().get().error, HasSubstr("shutting down"));
  Host(2).absent_have_loaded = true;
  EXPECT_THAT(Begin(3), ElementsAre(0, 2, 2));
}

TEST_F(AbsentRanksTest, AnotherRankEndsBeforeTheAbsentOneHasLoaded) {
  Start({.restarts = true});
  supervisor->Watch();
  for (int i = 0; i < 3; ++i) Submit(9);
  absent = {1};
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_THAT(Begin(2), ElementsAre(0, 2, 2));
  absent = {0, 1};
  Host(2).End("rank 0 was killed", kKilled);
  EXPECT_THAT(Begin(3), ElementsAre(2, 2, 2));
  EXPECT_EQ(front.history().absent, 2);
  absent = {};  // the last rank cannot serve alone, so the next epoch has all ranks
  Host(3).End("rank 2 was killed", kKilled);
  EXPECT_THAT(Begin(4), ElementsAre(2, 2, 2));
  EXPECT_EQ(front.history().absent, 0);
  EXPECT_EQ(front.history().deaths, 3);
}

TEST_F(SupervisorTest, AnErrorOfRanksThatLoadIsFinal) {
  Start({.restarts = true});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).Send(EngineFailure{"no such tensor", ErrorKind::kInvalid});
  Host(2).End("rank 0 ended with exit code 2: no such tensor", kLoadError);
  EXPECT_THAT(Lost(), HasSubstr("no such tensor"));
  EXPECT_TRUE(front.ranks_lost());
}

// On a busy machine, the end of a process is known before its last message arrives.
TEST_F(SupervisorTest, AnErrorThatArrivesAfterTheEndOfItsRankIsFinal) {
  Start({.restarts = true});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).EndBefore(EngineFailure{"no such tensor", ErrorKind::kInvalid}, 60ms,
                    "rank 0 ended with exit code 2", kLoadError);
  EXPECT_EQ(Lost(), "no such tensor");
}

TEST_F(SupervisorTest, TooManyDeathsAreFinal) {
  Start({.restarts = true, .deaths = {.count = 2, .window = 60s}});
  supervisor->Watch();
  for (const size_t epoch : {1, 2, 3}) {
    if (epoch > 1) Host(epoch).Send(RankReady{});
    while (front.history().epoch < static_cast<int64_t>(epoch)) std::this_thread::yield();
    Host(epoch).End("death " + std::to_string(epoch), kKilled);
  }
  EXPECT_THAT(Lost(), AllOf(HasSubstr("death 1; death 2; death 3"), HasSubstr("2/60")));
}

TEST_F(SupervisorTest, WithoutRestartsADeathIsFinal) {
  Start({.restarts = false});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_EQ(Lost(), "rank 1 was killed");
}

TEST_F(SupervisorTest, BeforeTheServerIsReadyADeathIsFinal) {
  Start({.restarts = true});
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_EQ(Lost(), "rank 1 was killed");
}

TEST_F(SupervisorTest, ShutdownDoesNotWaitForRanksThatLoad) {
  Start({.restarts = true});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  Host(2);
  EXPECT_TRUE(supervisor->Shutdown(10s));
}

TEST_F(SupervisorTest, ARankThatCannotBeKilledEndsTheServer) {
  Start({.restarts = true, .reap_timeout = 7s});
  supervisor->Watch();
  const uint64_t id = Submit(9);
  Host(1).can_be_killed = false;
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_THAT(Lost(), HasSubstr("has not ended after 7 s"));
  EXPECT_TRUE(front.ranks_lost());
  EXPECT_EQ(id, 1u);
}

}  // namespace
}  // namespace switchyard
