// Restarts after the end of a rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/ranks/test_supervisor.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST_F(SupervisorTest, AnErrorOfRanksThatLoadIsFinal) {
  Start({.restarts = true});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).Send(EngineFailure{"no such tensor", ErrorKind::kInvalid});
  Host(2).End("rank 0 ended with exit code 2: no such tensor", kFailed);
  EXPECT_THAT(Lost(), HasSubstr("no such tensor"));
  EXPECT_TRUE(front.ranks_lost());
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
