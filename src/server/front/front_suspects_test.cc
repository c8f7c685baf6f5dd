// Requests that may have ended their ranks.
#include <gmock/gmock.h>

#include "server/front/test_restarted_front.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using FrontSuspectsTest = FrontRestartTest;

TEST_F(FrontSuspectsTest, AKillMakesNoRequestSuspect) {
  Submit(9);
  Submit(9);
  Steps(1);
  Restart({.why = "killed", .time = Clock::now(), .failed = {}, .batch = {{1, 2}}});
  EXPECT_THAT(ranks.Requested(), ElementsAre(1, 2));
}

TEST_F(FrontSuspectsTest, SuspectsRunAloneOneAfterAnother) {
  for (int i = 0; i < 4; ++i) Submit(9);
  Steps(2);
  Restart(Crashed({{2, 3, 77}}));
  EXPECT_THAT(ranks.Requested(), ElementsAre(2));
  EXPECT_EQ(std::get<EngineRequest>(ranks.sent[0]).sampling.max_new_tokens, 4);
  const uint64_t late = Submit(3);
  Steps(1);
  EXPECT_THAT(ranks.Requested(), ElementsAre(2));
  EXPECT_GT(front->history().held_for, 0);
  Steps(1);
  EXPECT_THAT(ranks.Requested(), ElementsAre(2, 3));
  Steps(2);
  EXPECT_THAT(ranks.Requested(), ElementsAre(2, 3, 1, 2, 3, 4, late));
  EXPECT_EQ(front->history().held_for, 0);
  RunOut();
  for (uint64_t id = 1; id <= 4; ++id) ExpectWhole(id, 9);
  ExpectWhole(late, 3);
}

TEST_F(FrontSuspectsTest, WithAnUnknownBatchAllRequestsOfTheRanksAreSuspect) {
  Submit(9);
  Submit(9);
  Steps(1);
  Restart(Crashed(std::nullopt));
  EXPECT_THAT(ranks.Requested(), ElementsAre(1));
  Steps(2);
  EXPECT_THAT(ranks.Requested(), ElementsAre(1, 2));
  RunOut();
  ExpectWhole(1, 9);
  ExpectWhole(2, 9);
}

TEST_F(FrontSuspectsTest, ARequestThatEndsItsRanksAloneEndsWithTheError) {
  for (int i = 0; i < 3; ++i) Submit(9);
  Steps(1);
  Restart(Crashed({{1, 2, 3}}));
  Steps(2);  // request 1 has run alone without a failure
  EXPECT_EQ(ranks.Batch(), std::vector<uint64_t>());
  Restart(Killed());  // SIGKILL does not count as a failure
  EXPECT_EQ(clients[2]->finish, FinishReason::kNone);
  Steps(1);
  EXPECT_EQ(ranks.Batch(), std::vector<uint64_t>{2});
  Restart(Crashed({{2}}));
  EXPECT_EQ(clients[2]->finish, FinishReason::kError);
  EXPECT_THAT(clients[2]->error, HasSubstr("SIGSEGV"));
  RunOut();
  ExpectWhole(1, 9);
  ExpectWhole(3, 9);
  EXPECT_THAT(clients[2]->tokens, SizeIs(2));
}

// All ranks fail for a cause outside of the requests. The first failure ends the epoch, so the
// others fail in later epochs, in which a suspect runs alone.
TEST_F(FrontSuspectsTest, RanksThatFailOneAfterAnotherBlameNoRequest) {
  for (int i = 0; i < 3; ++i) Submit(9);
  Steps(1);
  Restart(Crashed({{1, 2, 3}}, {0}));
  for (const int rank : {1, 2, 3}) {
    EXPECT_THAT(ranks.Requested(), ElementsAre(1));
    Restart(Crashed({{1}}, {rank}));
  }
  EXPECT_THAT(ranks.Requested(), ElementsAre(1));
  RunOut();
  for (uint64_t id = 1; id <= 3; ++id) ExpectWhole(id, 9);
}

TEST_F(FrontSuspectsTest, ARequestThatMakesEachRankFailEndsAfterTheFirstSecondFailure) {
  const uint64_t a = Submit(9), b = Submit(9);
  Steps(1);
  Restart(Crashed({{a, b}}, {0}));
  Restart(Crashed({{a}}, {1}));
  EXPECT_EQ(clients[a]->finish, FinishReason::kNone);
  Restart(Crashed({{a}}, {0}));
  EXPECT_EQ(clients[a]->finish, FinishReason::kError);
  RunOut();
  ExpectWhole(b, 9);
}

// Earlier failures of a request do not count after it has run alone without a failure.
TEST_F(FrontSuspectsTest, ARequestThatIsClearedOfSuspicionBeginsAnew) {
  const uint64_t a = Submit(20);
  Steps(1);
  for (int i = 0; i < 3; ++i) {
    Restart(Crashed({{a}}));
    Steps(3);  // the request runs alone for two tokens, then with the others
    EXPECT_EQ(clients[a]->finish, FinishReason::kNone);
  }
  RunOut();
  ExpectWhole(a, 20);
}

TEST_F(FrontSuspectsTest, TheLastTokensOfASuspectEndItAsUsual) {
  const uint64_t id = Submit(3);
  Steps(1);
  Restart(Crashed({{id}}));
  RunOut();
  ExpectWhole(id, 3);
}

TEST_F(FrontSuspectsTest, AnAbortedSuspectMakesRoomForTheNext) {
  const uint64_t a = Submit(9), b = Submit(9);
  Steps(1);
  Restart(Crashed({{a, b}}));
  front->Abort({a});
  Steps(1);
  EXPECT_EQ(clients[a]->finish, FinishReason::kAbort);
  RunOut();
  ExpectWhole(b, 9);
}

TEST_F(FrontSuspectsTest, AnAbortedRequestThatWaitsForSuspectsEndsAtOnce) {
  const uint64_t a = Submit(9), b = Submit(9), c = Submit(9);
  Steps(1);
  Restart(Crashed({{a, b}}));
  front->Abort({b, c});
  EXPECT_EQ(clients[b]->finish, FinishReason::kAbort);
  EXPECT_EQ(clients[c]->finish, FinishReason::kAbort);
  RunOut();
  ExpectWhole(a, 9);
}

// The kernel may kill the ranks because of the memory that a request needs. Kills with other causes
// may be as frequent, but they do not go on for as long.
TEST_F(FrontSuspectsTest, KillsInARowWithoutATokenMakeTheirBatchSuspect) {
  const uint64_t a = Submit(9), b = Submit(9);
  Clock::time_point now = Clock::now();
  const auto kill = [&](std::vector<uint64_t> batch) {
    const int fruitless =
        front->Pause({.why = "rank 0 was killed", .time = now, .batch = std::move(batch)});
    ranks.Restart();
    front->Resume();
    return fruitless;
  };
  Steps(1);
  EXPECT_EQ(kill({a, b}), 0);
  for (int i = 1; i < 5; ++i) EXPECT_EQ(kill({a, b}), i);
  EXPECT_THAT(ranks.Requested(), ElementsAre(a, b));
  EXPECT_EQ(kill({a, b}), 5);
  for (int i = 6; i <= 20; ++i) {
    EXPECT_THAT(ranks.Requested(), ElementsAre(a));
    EXPECT_EQ(kill({a}), i);
    EXPECT_EQ(clients[a]->finish, FinishReason::kNone);
  }
  now += std::chrono::seconds(4);
  kill({a});
  EXPECT_THAT(clients[a]->error, HasSubstr("rank 0 was killed"));
  RunOut();
  ExpectWhole(b, 9);
}

TEST_F(FrontSuspectsTest, KillsOfRanksWithoutRequestsAreNotFruitless) {
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(front->Pause({.why = "killed", .time = Clock::now(), .batch = {{}}}), 0);
    ranks.Restart();
    front->Resume();
  }
}

}  // namespace
}  // namespace switchyard
