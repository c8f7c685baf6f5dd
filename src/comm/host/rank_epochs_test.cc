// Rank processes that keep running from one epoch to the next. They run this test program with the
// argument "rank"; main() is in rank_processes_test.cc.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/host/test_rank_processes.h"

namespace switchyard {
namespace {

std::vector<pid_t> Sorted(std::vector<pid_t> pids) {
  std::ranges::sort(pids);
  return pids;
}

TEST(RankEpochsTest, ARankThatOutlivesAnEpochServesInTheNext) {
  RankGroup group(3, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(group.endpoint()));
  RankProcesses& ranks = group.ranks();
  for (const int victim : {1, 0, 2}) {
    EXPECT_TRUE(ranks.WaitJoined());
    const auto before = ChildrenOf(getpid());
    ASSERT_EQ(before.size(), 3u);
    const size_t exits = group.Exits(0).size();
    kill(PidOf(victim), SIGKILL);
    EXPECT_EQ(group.Exits(exits + 1).back().rank, victim);
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

TEST(RankExitTest, FaultsMayHaveDamagedMemory) {
  const auto exit = [](int code, int signal, const char* reason = "", bool absent = false) {
    RankExit made;
    made.code = code;
    made.signal = signal;
    made.reason = reason;
    made.absent = absent;
    return made.MayHaveDamaged();
  };
  EXPECT_TRUE(exit(0, SIGSEGV));
  EXPECT_TRUE(exit(0, SIGABRT, "rank 0 failed: no memory"));
  EXPECT_TRUE(exit(1, 0));  // a handler of fault signals
  EXPECT_FALSE(exit(1, 0, "rank 0 failed: no memory"));
  EXPECT_FALSE(exit(0, 0));
  EXPECT_FALSE(exit(0, SIGKILL));
  EXPECT_FALSE(exit(0, SIGSEGV, "", /*absent=*/true));
}

// The next process of a rank finds the descriptors of a rank that was killed, but not those of a
// rank that ended by a fault.
TEST(RankEpochsTest, ANewProcessFindsTheDescriptorsOfTheLastOne) {
  RankGroup group(2, "epochs", kLong, {}, {}, {}, /*epochs=*/true, /*kept_bytes=*/4096, {}, 0,
                  /*keeps_descriptors=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(group.endpoint()));
  RankProcesses& ranks = group.ranks();
  const auto found_by = [&](int rank) {
    return std::string(reinterpret_cast<const char*>(group.arena()->Kept(rank).data()));
  };
  ASSERT_TRUE(ranks.WaitJoined());
  EXPECT_EQ(found_by(0), "nothing");
  size_t exits = 0;
  for (const auto& [how, found] : std::vector<std::pair<int, std::string>>{
           {SIGKILL, "left by rank 1"}, {SIGSEGV, "nothing"}, {SIGKILL, "left by rank 1"}}) {
    kill(PidOf(1), how);
    EXPECT_EQ(group.Exits(++exits).size(), exits);
    socket->Send("wake");  // the leader waits for a message
    EXPECT_TRUE(ranks.Settle(kLong, kLong));
    group.arena()->ClearKept();
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket->DiscardUnsent();
    socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    EXPECT_THAT(ranks.BeginEpoch(endpoint), ::testing::ElementsAre(1));
    EXPECT_TRUE(ranks.WaitJoined());
    EXPECT_EQ(found_by(1), found);
  }
  ranks.ExpectEnd();
  socket->Send("end");
  EXPECT_TRUE(ranks.WaitEnded(kLong));
}

// The next process of a killed rank starts before the next epoch. If it ends too, another one
// starts.
TEST(RankEpochsTest, ANextProcessMayStartBeforeItsEpoch) {
  RankGroup group(2, "epochs", kLong, {}, {}, {}, /*epochs=*/true, /*kept_bytes=*/4096, {}, 0,
                  /*keeps_descriptors=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(group.endpoint()));
  RankProcesses& ranks = group.ranks();
  ASSERT_TRUE(ranks.WaitJoined());
  const auto next = [](pid_t last) {
    pid_t pid = PidOf(1);
    while (pid < 0 || pid == last) {
      std::this_thread::sleep_for(milliseconds(1));
      pid = PidOf(1);
    }
    return pid;
  };
  size_t exits = 0;
  for (const bool ends_too : {false, true, false}) {
    const pid_t last = PidOf(1);
    kill(last, SIGKILL);
    EXPECT_EQ(group.Exits(++exits).size(), exits);
    const pid_t early = next(last);
    if (ends_too) kill(early, SIGKILL);
    socket->Send("wake");  // the leader waits for a message
    EXPECT_TRUE(ranks.Settle(kLong, kLong));
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket->DiscardUnsent();
    socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    while (ends_too && PidOf(1) == early) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_THAT(ranks.BeginEpoch(endpoint), ::testing::ElementsAre(1));
    EXPECT_TRUE(ranks.WaitJoined());
    EXPECT_EQ(PidOf(1) == early, !ends_too);
    socket->Send("hello");
    EXPECT_EQ(socket->Receive(kLong), "rank 0 heard hello");
  }
  // One that no epoch takes ends with the other ranks.
  const pid_t last = PidOf(1);
  kill(last, SIGKILL);
  group.Exits(++exits);
  next(last);
  ranks.KillAll();
  EXPECT_TRUE(ranks.Kill(kLong));
  EXPECT_THAT(ChildrenOf(getpid()), ::testing::IsEmpty());
}

// The leader is the first active rank. An absent rank takes part once it waits.
TEST(RankEpochsTest, AnEpochRunsWithoutRanksThatLoad) {
  RankGroup group(4, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(group.endpoint()));
  RankProcesses& ranks = group.ranks();
  const auto begin = [&](bool runs_without) {
    socket->Send("wake");  // the leader waits for a message
    EXPECT_TRUE(ranks.Settle(kLong, kLong));
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket->DiscardUnsent();
    socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    std::vector<int> started =
        ranks.BeginEpoch(endpoint, [=](const std::vector<int>&) { return runs_without; });
    EXPECT_TRUE(ranks.WaitJoined());
    socket->Send("hello");
    EXPECT_EQ(socket->Receive(kLong), "rank 0 heard hello");
    return started;
  };
  EXPECT_TRUE(ranks.WaitJoined());
  size_t exits = 0;
  for (const std::vector<int>& victims : {std::vector<int>{1}, {0}, {0, 2}, {3}}) {
    for (const int victim : victims) kill(PidOf(victim), SIGKILL);
    group.Exits(exits += victims.size());
    EXPECT_EQ(begin(true), victims);
    EXPECT_EQ(ranks.Absent(), victims);
    while (!ranks.AbsentWait()) std::this_thread::sleep_for(milliseconds(1));
    ranks.Retire({}, "the missing ranks have loaded");
    EXPECT_TRUE(begin(true).empty());
    EXPECT_TRUE(ranks.Absent().empty());
  }
  // All ranks take part if the others cannot serve alone.
  kill(PidOf(2), SIGKILL);
  group.Exits(exits + 1);
  EXPECT_EQ(begin(false), std::vector<int>{2});
  EXPECT_TRUE(ranks.Absent().empty());
  kill(PidOf(1), SIGKILL);
  group.Exits(exits + 2);
  EXPECT_EQ(begin(true), std::vector<int>{1});
  socket->Send("end");
  EXPECT_TRUE(ranks.WaitEnded(kLong));
}

// The first epoch after a loss runs without rank 1, which loads. The next one needs all ranks: no
// other rank is left, or too few. A rank that loads would join only at the end of its load.
TEST(RankEpochsTest, ARankThatLoadsStartsAgainIfAllRanksAreNeeded) {
  for (const int world : {2, 3}) {
    RankGroup group(world, "stuck load", kLong, {}, {}, {}, /*epochs=*/true);
    auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(group.endpoint()));
    RankProcesses& ranks = group.ranks();
    const auto lose = [&](int rank, size_t exits) {
      EXPECT_TRUE(ranks.WaitJoined());
      kill(PidOf(rank), SIGKILL);
      EXPECT_EQ(group.Exits(exits).size(), exits);
      socket->Send("wake");  // the leader waits for a message
      EXPECT_TRUE(ranks.Settle(kLong, kLong));
      const std::string endpoint = ControlSocket::UniqueEndpoint();
      socket->DiscardUnsent();
      socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
      return ranks.BeginEpoch(endpoint, [=](const std::vector<int>& others) {
        return std::ssize(others) == world - 1;
      });
    };
    EXPECT_THAT(lose(1, 1), ::testing::ElementsAre(1));
    EXPECT_THAT(ranks.Absent(), ::testing::ElementsAre(1));
    EXPECT_THAT(lose(0, 2), ::testing::ElementsAre(0, 1));
    EXPECT_TRUE(ranks.Absent().empty());
    EXPECT_TRUE(ranks.WaitJoined());
    socket->Send("hello");
    EXPECT_EQ(socket->Receive(kLong), "rank 0 heard hello");
    EXPECT_EQ(group.Exits(2).size(), 2u);  // the kill of rank 1 is not reported
  }
}

// A rank that hangs while the others serve is killed and reported. A slow load with progress is not
// limited.
TEST(RankEpochsTest, AnAbsentRankWhoseLoadMakesNoProgressIsKilled) {
  for (const char* part : {"stuck load", "slow load"}) {
    const bool stuck = part == std::string("stuck load");
    RankGroup group(3, part, kLong, {}, {}, {}, /*epochs=*/true, 0,
                    /*load_timeout=*/milliseconds(stuck ? 400 : 1200));
    auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(group.endpoint()));
    RankProcesses& ranks = group.ranks();
    EXPECT_TRUE(ranks.WaitJoined());
    kill(PidOf(1), SIGKILL);
    group.Exits(1);
    socket->Send("wake");
    EXPECT_TRUE(ranks.Settle(kLong, kLong));
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket->DiscardUnsent();
    socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    EXPECT_THAT(ranks.BeginEpoch(endpoint, [](const std::vector<int>&) { return true; }),
                ::testing::ElementsAre(1));
    if (stuck) {
      const RankExit exit = group.Exits(2).back();
      EXPECT_EQ(exit.rank, 1);
      EXPECT_TRUE(exit.absent);
      EXPECT_FALSE(exit.ByItself());
      EXPECT_GE(exit.load_stuck_seconds, 0.4);
      EXPECT_GE(exit.load_seconds, exit.load_stuck_seconds);
      EXPECT_THAT(exit.Describe(), ::testing::HasSubstr("--dist-timeout"));
    } else {
      while (!ranks.AbsentWait()) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(300));  // a rank that waits is not limited either
      EXPECT_EQ(group.Exits(1).size(), 1u);
    }
  }
}

// No other rank waits for the only active one, so the limit applies to it too, until it has
// heartbeats.
TEST(RankEpochsTest, TheOnlyActiveRankIsKilledIfItsLoadMakesNoProgress) {
  RankGroup group(2, "epochs", kLong, {}, {}, {}, /*epochs=*/true, 0,
                  /*load_timeout=*/milliseconds(400));
  auto socket = ControlSocket::Bind(group.endpoint());
  RankProcesses& ranks = group.ranks();
  EXPECT_TRUE(ranks.WaitJoined());
  kill(PidOf(1), SIGKILL);
  group.Exits(1);
  socket.Send("wake");
  EXPECT_TRUE(ranks.Settle(kLong, kLong));
  ranks.BeginEpoch(group.endpoint(), [](const std::vector<int>&) { return true; });
  const RankExit exit = group.Exits(2).back();
  EXPECT_EQ(exit.rank, 0);
  EXPECT_FALSE(exit.absent);
  EXPECT_GE(exit.load_stuck_seconds, 0.4);
}

// Kept memory is cleared after a fault signal, because the process may have overwritten any memory
// before it ended. SIGKILL is no fault: it comes from outside.
TEST(RankEpochsTest, KeptMemoryOutlivesAKillButNoFault) {
  RankGroup group(2, "epochs", kLong, {}, {}, {}, /*epochs=*/true, /*kept_bytes=*/4096);
  auto socket = ControlSocket::Bind(group.endpoint());
  const std::span<std::byte> kept = group.arena()->Kept(1);
  size_t exits = 0;
  // The address sanitizer turns SIGSEGV into an exit, but not SIGABRT.
  for (const int signal : {SIGKILL, SIGABRT}) {
    EXPECT_TRUE(group.ranks().WaitJoined());
    kept[4095] = std::byte(9);
    kill(PidOf(1), signal);
    group.Exits(++exits);
    EXPECT_TRUE(group.ranks().Settle(milliseconds(50), kLong));
    group.ranks().BeginEpoch(group.endpoint());
    EXPECT_EQ(kept[4095], std::byte(signal == SIGKILL ? 9 : 0));
  }
  EXPECT_TRUE(group.ranks().WaitJoined());
}

TEST(RankEpochsTest, ARetiredRankIsReplacedWithoutAReport) {
  RankGroup group(3, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(group.endpoint()));
  RankProcesses& ranks = group.ranks();
  for (const std::vector<int>& retired : {std::vector<int>{1}, {0, 2}}) {
    EXPECT_TRUE(ranks.WaitJoined());
    ranks.Retire(retired, "a planned restart");
    EXPECT_EQ(group.arena()->AbortReason(), "a planned restart");
    socket->Send("wake");
    EXPECT_TRUE(ranks.Settle(kLong, kLong));
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket->DiscardUnsent();
    socket = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    EXPECT_EQ(ranks.BeginEpoch(endpoint), retired);
  }
  EXPECT_TRUE(ranks.WaitJoined());
  EXPECT_TRUE(group.Exits(0).empty());
}

// The abort may let a rank wait for the next epoch before the kill reaches it.
TEST(RankEpochsTest, ARankThatIsRetiredWhileItWaitsIsReplaced) {
  RankGroup group(3, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = std::make_unique<ControlSocket>(ControlSocket::Bind(group.endpoint()));
  RankProcesses& ranks = group.ranks();
  const std::shared_ptr<SharedArena>& arena = group.arena();
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
  EXPECT_TRUE(group.Exits(0).empty());
}

TEST(RankEpochsTest, ARankThatNeitherWaitsNorEndsIsKilled) {
  RankGroup group(2, "epochs", kLong, {}, {}, {}, /*epochs=*/true);
  auto socket = ControlSocket::Bind(group.endpoint());
  EXPECT_TRUE(group.ranks().WaitJoined());
  kill(PidOf(1), SIGKILL);
  group.Exits(1);
  EXPECT_TRUE(group.ranks().Settle(milliseconds(50), kLong));  // the leader waits for a message
  EXPECT_THAT(group.ranks().BeginEpoch(group.endpoint()), ::testing::ElementsAre(0, 1));
  EXPECT_TRUE(group.ranks().WaitJoined());
  EXPECT_EQ(group.Exits(0).size(), 1u);
}

}  // namespace
}  // namespace switchyard
