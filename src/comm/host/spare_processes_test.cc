// Spare processes take the places of ranks. They run this test program with the argument "rank";
// main() is in rank_processes_test.cc.
#include "comm/host/spare_processes.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/host/test_rank_processes.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;

pid_t PidOfSpare() {
  for (const pid_t pid : ChildrenOf(getpid()))
    if (Contents("/proc/" + std::to_string(pid) + "/comm") == "spare\n") return pid;
  return -1;
}

class SparesTest : public ::testing::Test {
 protected:
  RankProcesses& Start(int world, int spares, milliseconds stall_timeout = {}) {
    group_ =
        std::make_unique<RankGroup>(world, "spares", kLong, std::nullopt, milliseconds(0),
                                    stall_timeout, /*epochs=*/true, 0, milliseconds(0), spares);
    socket_ = std::make_unique<ControlSocket>(ControlSocket::Bind(group_->endpoint()));
    EXPECT_TRUE(group_->ranks().WaitJoined());
    return group_->ranks();
  }
  // Waits until so many spares can take a place.
  void AwaitReady(int count) {
    const auto give_up = std::chrono::steady_clock::now() + kLong;
    while (group_->ranks().Spares().ready != count && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(group_->ranks().Spares().ready, count);
  }
  // Ends ranks and begins the next epoch. Returns the ranks that have another process in it.
  std::vector<int> Lose(const std::vector<int>& victims, RankProcesses::RunsWith runs_with = {}) {
    for (const int victim : victims) kill(PidOf(victim), SIGKILL);
    group_->Exits(exits_ += victims.size());
    socket_->Send("wake");  // the leader waits for a message
    EXPECT_TRUE(group_->ranks().Settle(kLong, kLong));
    const std::string endpoint = ControlSocket::UniqueEndpoint();
    socket_->DiscardUnsent();
    socket_ = std::make_unique<ControlSocket>(ControlSocket::Bind(endpoint));
    std::vector<int> started = group_->ranks().BeginEpoch(endpoint, std::move(runs_with));
    EXPECT_TRUE(group_->ranks().WaitJoined());
    socket_->Send("hello");
    EXPECT_EQ(socket_->Receive(kLong), "rank 0 heard hello");
    return started;
  }
  void End() {
    group_->ranks().ExpectEnd();
    socket_->Send("end");
    EXPECT_TRUE(group_->ranks().WaitEnded(kLong));
    EXPECT_TRUE(ChildrenOf(getpid()).empty());
  }

  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<ControlSocket> socket_;
  size_t exits_ = 0;
};

TEST_F(SparesTest, ASpareTakesThePlaceOfARank) {
  RankProcesses& ranks = Start(3, 1);
  int used = 0;
  for (const int victim : {1, 0, 2}) {  // rank 0 is the leader
    AwaitReady(1);
    const pid_t spare = PidOfSpare();
    ASSERT_GT(spare, 0);
    EXPECT_THAT(Lose({victim}), ElementsAre(victim));
    EXPECT_EQ(PidOf(victim), spare);
    EXPECT_EQ(ranks.Spares().used, ++used);
    EXPECT_EQ(ranks.Spares().failed, 0);
  }
  AwaitReady(1);
  EXPECT_EQ(ranks.Spares().wanted, 1);
  EXPECT_EQ(group_->Exits(0).size(), 3u);
  End();
}

// Two ranks end and one spare has loaded: the other rank gets a new process.
TEST_F(SparesTest, FurtherRanksAreStarted) {
  RankProcesses& ranks = Start(3, 1);
  AwaitReady(1);
  const pid_t spare = PidOfSpare();
  EXPECT_THAT(Lose({0, 2}), ElementsAre(0, 2));
  EXPECT_EQ(PidOf(0), spare);
  EXPECT_EQ(ranks.Spares().used, 1);
  End();
}

// An epoch without the lost ranks is not needed if spares take all places.
TEST_F(SparesTest, NoRankIsAbsentIfSparesSuffice) {
  RankProcesses& ranks = Start(3, 2);
  AwaitReady(2);
  const auto others_serve = [](const std::vector<int>&) { return true; };
  EXPECT_THAT(Lose({1, 2}, others_serve), ElementsAre(1, 2));
  EXPECT_TRUE(ranks.Absent().empty());
  AwaitReady(2);
  for (const pid_t pid : ChildrenOf(getpid()))
    if (Contents("/proc/" + std::to_string(pid) + "/comm") == "spare\n") kill(pid, SIGKILL);
  AwaitReady(0);
  EXPECT_THAT(Lose({1}, others_serve), ElementsAre(1));
  EXPECT_THAT(ranks.Absent(), ElementsAre(1));
  while (!ranks.AbsentWait()) std::this_thread::sleep_for(milliseconds(1));
  End();
}

TEST_F(SparesTest, ASpareThatEndsIsReplacedWithoutAReport) {
  RankProcesses& ranks = Start(2, 1);
  AwaitReady(1);
  const pid_t first = PidOfSpare();
  kill(first, SIGKILL);
  AwaitReady(0);
  AwaitReady(1);
  EXPECT_NE(PidOfSpare(), first);
  EXPECT_EQ(ranks.Spares().failed, 1);
  EXPECT_TRUE(group_->Exits(0).empty());
  EXPECT_FALSE(group_->arena()->aborted());
  End();
}

// A stopped spare gets no place, and is killed.
TEST_F(SparesTest, AStoppedSpareIsNotUsed) {
  RankProcesses& ranks = Start(2, 1, /*stall_timeout=*/milliseconds(400));
  AwaitReady(1);
  const pid_t first = PidOfSpare();
  kill(first, SIGSTOP);
  AwaitReady(0);
  EXPECT_THAT(Lose({1}), ElementsAre(1));
  EXPECT_NE(PidOf(1), first);
  EXPECT_EQ(ranks.Spares().used, 0);
  AwaitReady(1);
  EXPECT_NE(PidOfSpare(), first);
  EXPECT_EQ(ranks.Spares().failed, 1);
  End();
}

TEST_F(SparesTest, TheyEndWithTheRanks) {
  Start(2, 2);
  AwaitReady(2);
  group_.reset();
  EXPECT_TRUE(ChildrenOf(getpid()).empty());
}

}  // namespace
}  // namespace switchyard
