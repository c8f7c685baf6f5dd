// Rank processes that keep running from one epoch to the next. They run this test program with the
// argument "rank"; main() is in rank_processes_test.cc.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>

#include "comm/host/test_rank_processes.h"

namespace switchyard {
namespace {

std::vector<pid_t> Sorted(std::vector<pid_t> pids) {
  std::ranges::sort(pids);
  return pids;
}

TEST(RankEpochsTest, ARankThatOutlivesAnEpochServesInTheNext) {
  Troupe troupe(3, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(troupe.endpoint()));
  RankProcesses& ranks = troupe.ranks();
  for (const int victim : {1, 0, 2}) {
    EXPECT_TRUE(ranks.WaitJoined());
    const auto before = ChildrenOf(getpid());
    ASSERT_EQ(before.size(), 3u);
    const size_t exits = troupe.Exits(0).size();
    kill(PidOf(victim), SIGKILL);
    EXPECT_EQ(troupe.Exits(exits + 1).back().rank, victim);
    socket->Send("wake");  // the leader waits for a message
    EXPECT_TRUE(ranks.Settle(kLong, kLong));
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket->DiscardUnsent();
    socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    EXPECT_THAT(ranks.BeginEpoch(endpoint), ::testing::ElementsAre(victim));
    EXPECT_TRUE(ranks.WaitJoined());
    std::vector<pid_t> kept;
    std::ranges::set_intersection(Sorted(before), Sorted(ChildrenOf(getpid())),
                                  std::back_inserter(kept));
    EXPECT_EQ(kept.size(), 2u);
    socket->Send("hello");
    EXPECT_EQ(socket->Receive(kLong), "rank 0 heard hello");
  }
  ranks.ExpectEnd();
  socket->Send("end");
  EXPECT_TRUE(ranks.WaitEnded(kLong));
}

// Kept memory is cleared after a fault signal, because the process may have overwritten any memory
// before it ended. SIGKILL is no fault: it comes from outside.
TEST(RankEpochsTest, KeptMemoryOutlivesAKillButNoFault) {
  Troupe troupe(2, "epochs", kLong, {}, {}, {}, /*epochs=*/true, /*kept_bytes=*/4096);
  auto socket = ControlSocket::Bind(troupe.endpoint());
  const std::span<std::byte> kept = troupe.arena()->Kept(1);
  size_t exits = 0;
  // The address sanitizer turns SIGSEGV into an exit, but not SIGABRT.
  for (const int signal : {SIGKILL, SIGABRT}) {
    EXPECT_TRUE(troupe.ranks().WaitJoined());
    kept[4095] = std::byte(9);
    kill(PidOf(1), signal);
    troupe.Exits(++exits);
    EXPECT_TRUE(troupe.ranks().Settle(milliseconds(50), kLong));
    troupe.ranks().BeginEpoch(troupe.endpoint());
    EXPECT_EQ(kept[4095], std::byte(signal == SIGKILL ? 9 : 0));
  }
  EXPECT_TRUE(troupe.ranks().WaitJoined());
}

TEST(RankEpochsTest, ARetiredRankIsReplacedWithoutAReport) {
  Troupe troupe(3, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(troupe.endpoint()));
  RankProcesses& ranks = troupe.ranks();
  for (const std::vector<int>& retired : {std::vector<int>{1}, {0, 2}}) {
    EXPECT_TRUE(ranks.WaitJoined());
    ranks.Retire(retired, "a planned restart");
    EXPECT_EQ(troupe.arena()->AbortReason(), "a planned restart");
    socket->Send("wake");
    EXPECT_TRUE(ranks.Settle(kLong, kLong));
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket->DiscardUnsent();
    socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    EXPECT_EQ(ranks.BeginEpoch(endpoint), retired);
  }
  EXPECT_TRUE(ranks.WaitJoined());
  EXPECT_TRUE(troupe.Exits(0).empty());
}

// The abort may let a rank wait for the next epoch before the kill reaches it.
TEST(RankEpochsTest, ARankThatIsRetiredWhileItWaitsIsReplaced) {
  Troupe troupe(3, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(troupe.endpoint()));
  RankProcesses& ranks = troupe.ranks();
  const std::shared_ptr<SharedArena>& arena = troupe.arena();
  for (const std::vector<int>& retired : {std::vector<int>{1}, {0, 2}, {0, 1, 2}}) {
    EXPECT_TRUE(ranks.WaitJoined());
    arena->Abort("a planned restart");
    socket->Send("wake");
    const auto give_up = std::chrono::steady_clock::now() + kLong;
    for (const int rank : {0, 1, 2}) {
      while (!arena->Waits(rank) && std::chrono::steady_clock::now() < give_up)
        std::this_thread::sleep_for(milliseconds(1));
      EXPECT_TRUE(arena->Waits(rank));
    }
    ranks.Retire(retired, "a planned restart");
    EXPECT_TRUE(ranks.Settle(kLong, kLong));
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket->DiscardUnsent();
    socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    EXPECT_EQ(ranks.BeginEpoch(endpoint), retired);
  }
  EXPECT_TRUE(ranks.WaitJoined());
  EXPECT_TRUE(troupe.Exits(0).empty());
}

TEST(RankEpochsTest, ARankThatNeitherWaitsNorEndsIsKilled) {
  Troupe troupe(2, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = ControlSocket::Bind(troupe.endpoint());
  EXPECT_TRUE(troupe.ranks().WaitJoined());
  kill(PidOf(1), SIGKILL);
  troupe.Exits(1);
  EXPECT_TRUE(troupe.ranks().Settle(milliseconds(50), kLong));  // the leader waits for a message
  EXPECT_THAT(troupe.ranks().BeginEpoch(troupe.endpoint()), ::testing::ElementsAre(0, 1));
  EXPECT_TRUE(troupe.ranks().WaitJoined());
  EXPECT_EQ(troupe.Exits(0).size(), 1u);
}

}  // namespace
}  // namespace switchyard
