// The test program is also its own rank program: RankProcesses runs it again with "rank" as the
// argument, and the rank then runs the part of the test that its spec names.
#include "comm/host/rank_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>
#include <string_view>

#include "comm/device/communicator.h"
#include "comm/device/mpi/test_mpi_rank.h"
#include "comm/device/tcp/tcp_ranks.h"
#include "comm/host/control_socket.h"
#include "comm/host/spawn.h"
#include "comm/host/test_rank_processes.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- The rank's side ----

int CountOpenFds() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    count += entry->d_name[0] != '.' && std::stoi(entry->d_name) != dirfd(folder) ? 1 : 0;
  }
  closedir(folder);
  return count;
}

std::vector<int> World(const SymmetricMemory& memory) {
  std::vector<int> group(static_cast<size_t>(memory.world()));
  for (int rank = 0; rank < memory.world(); ++rank) group[rank] = rank;
  return group;
}

// Exit codes of a rank.
constexpr int kGood = 0, kWrong = 40, kStoppedByPeer = 41, kNoSpec = 42;

bool SeesOnlyItsDescriptors(int fds_at_start) {
  // At the start: stdin, stdout, stderr, the spec and the arena. Reading the spec closes it.
  return fds_at_start == 5 && CountOpenFds() == 4 && getenv("SWITCHYARD_RANK_FDS") == nullptr;
}

bool OutlivesSignals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) raise(number);
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, SIGUSR1) == 0;
}

bool ShowsTitle(const RankSpec& spec, int argc, char** argv) {
  const std::string title = "switchyard::rank TP" + std::to_string(spec.rank) + " EP0";
  setenv("SWITCHYARD_TEST_VARIABLE", "kept", 1);
  const std::string path = getenv("PATH");
  SetProcessTitle(argc, argv, title);
  return Contents("/proc/self/cmdline").c_str() == title && getenv("PATH") == path &&
         std::string_view(getenv("SWITCHYARD_TEST_VARIABLE")) == "kept" &&
         Contents("/proc/self/comm") == "switchyard::ran\n";
}

bool AddsUp(const RankSpec& spec, Communicator& tp) {
  float sum = static_cast<float>(1 << spec.rank);
  tp.AllReduceSum(&sum, 1);
  return sum == static_cast<float>((1 << spec.world) - 1);
}

// The first rank receives messages from the parent, broadcasts and answers; all end after "end".
int ServeUntilEnd(const RankSpec& spec, Communicator& tp) {
  if (tp.rank() != 0) {
    while (tp.Broadcast("", /*idle=*/true) != "end") {
    }
    return kGood;
  }
  auto socket = ControlSocket::Connect(spec.control_endpoint);
  while (const auto message = socket.Receive(kLong)) {
    if (tp.Broadcast(*message) == "end") return kGood;
    socket.Send("rank 0 heard " + *message);
  }
  return kWrong;
}

// The load of an absent rank. In the part "stuck load" it hangs after some steps.
void Load(const RankSpec& spec) {
  for (int step = 0; step < 3; ++step) {
    spec.arena->CountLoadStep(spec.rank);
    usleep(150'000);
  }
  if (spec.spec == "stuck load") pause();
}

// Leaves a descriptor for the next process. The kept memory shows what the last one has left.
void KeepDescriptor(RankSpec& spec) {
  const auto found = spec.kept.at(0).Get();
  if (spec.last_epoch != 0)
    spec.control_endpoint = spec.arena->WaitForEpoch(spec.rank, spec.last_epoch);
  const std::string text = found ? found->record : "nothing";
  std::ranges::copy(std::as_bytes(std::span(text)), spec.arena->Kept(spec.rank).begin());
  spec.kept.at(0).Put("left by rank " + std::to_string(spec.rank), {STDOUT_FILENO});
}

// Serves in each epoch with a new communicator.
int ServeEpochs(RankSpec& spec) {
  prctl(PR_SET_NAME, RankName(spec.rank).c_str());
  if (!spec.kept.empty()) KeepDescriptor(spec);
  for (;;) {
    const uint32_t epoch = spec.arena->epoch();
    try {
      if (!spec.arena->Active(spec.rank)) {
        if (spec.spec.ends_with("load")) Load(spec);
        throw Error(ErrorKind::kPeer, "absent");
      }
      SymmetricMemory memory(spec.arena, spec.rank, {.timeout = kLong});
      Communicator tp(memory, World(memory), "tp", 4096);
      if (spec.spec == "spares") memory.StartHeartbeat();
      return ServeUntilEnd(spec, tp);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kPeer) return kWrong;
    }
    spec.control_endpoint = spec.arena->WaitForEpoch(spec.rank, epoch);
  }
}

// A spare loads in some steps, then waits for a place.
int ServeAsSpare(RankSpec& spec) {
  prctl(PR_SET_NAME, "spare");
  for (int step = 0; step < 2; ++step) {
    spec.arena->CountSpareStep(spec.spare);
    usleep(5'000);
  }
  spec.rank = spec.arena->AwaitPlace(spec.spare);
  spec.control_endpoint = spec.arena->endpoint();
  return ServeEpochs(spec);
}

int PlayPart(RankSpec& spec, int argc, char** argv, int fds_at_start) {
  if (spec.spare >= 0) return ServeAsSpare(spec);
  if (spec.spec == "epochs" || spec.spec == "slow load" || spec.spec == "stuck load" ||
      spec.spec == "spares")
    return ServeEpochs(spec);
  if (spec.spec == "never join" && spec.rank == 1) pause();
  if (spec.spec == "exit before joining" && spec.rank == 1) return 3;
  if (spec.network) {
    ConnectTcpRanks(*spec.arena, spec.rank, std::move(spec.listener), *spec.network, kLong);
  }
  SymmetricMemory memory(spec.arena, spec.rank, {.timeout = kLong});
  Communicator tp(memory, World(memory), "tp", 4096);
  if (spec.spec == "leave") return kGood;
  if (spec.spec == "add" && !AddsUp(spec, tp)) return kWrong;
  if (spec.spec == "descriptors" && !SeesOnlyItsDescriptors(fds_at_start)) return kWrong;
  if (spec.spec == "signals" && !OutlivesSignals()) return kWrong;
  // Only rank 1 has a heartbeat: rank 0 waits for messages of the parent and would beat in this
  // wait.
  if (spec.spec == "beat" && spec.rank == 1) memory.StartHeartbeat();
  if (spec.spec == "spin" && spec.rank == 1) {
    memory.StartHeartbeat();
    memory.SetHeartbeatTimeout(milliseconds(200));
    for (volatile int turns = 0;;) turns = turns + 1;
  }
  if (spec.spec == "title" && !ShowsTitle(spec, argc, argv)) return kWrong;
  return ServeUntilEnd(spec, tp);
}

int RankMain(int argc, char** argv) {
  const int fds_at_start = CountOpenFds();
  RankSpec spec;
  try {
    spec = InheritRankSpec();
  } catch (const Error&) {
    return kNoSpec;
  }
  try {
    return PlayPart(spec, argc, argv, fds_at_start);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kPeer ? kStoppedByPeer : kWrong;
  }
}

// ---- The parent's side ----

// Listeners of all ranks, as after a rendezvous of two nodes.
std::pair<NodeNetwork, NodeNetwork> TwoNodes(int ranks_per_node) {
  NodeNetwork first, second;
  second.node = 1;
  TcpWorld world{.token = TcpWorld::NewToken(), .ranks_per_node = ranks_per_node};
  for (NodeNetwork* node : {&first, &second}) {
    for (int i = 0; i < ranks_per_node; ++i) {
      node->listeners.push_back(TcpListener::Bind({"127.0.0.1", 0}));
      world.listeners.push_back(node->listeners.back().address());
    }
  }
  first.world = second.world = world;
  return {std::move(first), std::move(second)};
}

// Runs a part of the test after which the ranks still serve, and then shuts them down.
void ExpectGoodEnd(const std::string& part, int world) {
  RankGroup group(world, part);
  auto socket = ControlSocket::Bind(group.endpoint());
  group.ranks().WaitJoined();
  group.ranks().ExpectEnd();
  socket.Send("end");
  EXPECT_TRUE(group.ranks().WaitEnded(kLong));
  for (const RankExit& exit : group.Exits(0)) ADD_FAILURE() << part << ": " << exit.Describe();
}

TEST(RankProcessesTest, RanksAddOverSharedMemory) { ExpectGoodEnd("add", 4); }

TEST(RankProcessesTest, RanksOfTwoNodesAddOverTcp) {
  auto [first, second] = TwoNodes(2);
  RankGroup leaders(4, "add", kLong, std::move(first));
  RankGroup others(4, "add", kLong, std::move(second));
  auto socket = ControlSocket::Bind(leaders.endpoint());
  leaders.ranks().WaitJoined();
  others.ranks().WaitJoined();
  EXPECT_TRUE(leaders.arena()->Joined(1));
  EXPECT_FALSE(leaders.arena()->Joined(2));  // each node has its own memory
  leaders.ranks().ExpectEnd();
  others.ranks().ExpectEnd();
  socket.Send("end");
  EXPECT_TRUE(leaders.ranks().WaitEnded(kLong));
  EXPECT_TRUE(others.ranks().WaitEnded(kLong));
  EXPECT_TRUE(leaders.Exits(0).empty());
  EXPECT_TRUE(others.Exits(0).empty());
}

TEST(RankProcessesTest, ARankThatIsKilledStopsThoseOfTheOtherNode) {
  auto [first, second] = TwoNodes(1);
  RankGroup leaders(2, "serve", kLong, std::move(first));
  auto socket = ControlSocket::Bind(leaders.endpoint());
  pid_t other = -1;
  {
    const auto before = ChildrenOf(getpid());
    RankGroup others(2, "serve", kLong, std::move(second));
    for (const pid_t pid : ChildrenOf(getpid())) {
      if (std::ranges::find(before, pid) == before.end()) other = pid;
    }
    leaders.ranks().WaitJoined();
    others.ranks().WaitJoined();
    ASSERT_GT(other, 0);  // kill(-1) would signal every process
    kill(other, SIGKILL);
    EXPECT_EQ(others.Exits(1).at(0).rank, 1);
  }
  // A message may still be sent to the dead rank, if the end of the connection has not arrived
  // yet.
  const auto deadline = steady_clock::now() + kLong;
  do {
    socket.Send("anyone there?");
  } while (!leaders.HasExits(1, milliseconds(50)) && steady_clock::now() < deadline);
  EXPECT_EQ(leaders.Exits(1).at(0).code, kStoppedByPeer);
}

TEST(RankProcessesTest, ARankInheritsNoOtherDescriptor) {
  const FileDescriptor leak(open("/dev/null", O_RDONLY));  // without close-on-exec
  ExpectGoodEnd("descriptors", 2);
}

TEST(RankProcessesTest, ARankIgnoresTheTerminalsSignalsAndBlocksNone) {
  sigset_t user, before;
  sigemptyset(&user);
  sigaddset(&user, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &user, &before);
  ExpectGoodEnd("signals", 1);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(RankProcessesTest, ARankSetsItsTitle) { ExpectGoodEnd("title", 2); }

TEST(RankProcessesTest, TheLeaderAnswersOverTheControlSocketUntilShutdown) {
  RankGroup group(3, "serve");
  auto socket = ControlSocket::Bind(group.endpoint());
  group.ranks().WaitJoined();
  EXPECT_EQ(group.arena()->joined(), 3);
  socket.Send("a whistle");
  EXPECT_EQ(socket.Receive(kLong), "rank 0 heard a whistle");
  group.ranks().ExpectEnd();
  socket.Send("end");
  EXPECT_TRUE(group.ranks().WaitEnded(kLong));
  EXPECT_TRUE(group.Exits(0).empty());
}

TEST(RankProcessesTest, ARankThatIsKilledIsReportedAndStopsTheOthers) {
  RankGroup group(3, "serve");
  auto socket = ControlSocket::Bind(group.endpoint());
  group.ranks().WaitJoined();
  socket.Send("hello");
  ASSERT_TRUE(socket.Receive(kLong).has_value());  // all ranks now wait for one another
  const auto pids = ChildrenOf(getpid());
  ASSERT_EQ(pids.size(), 3u);
  kill(pids[1], SIGKILL);

  const auto exits = group.Exits(1);
  EXPECT_EQ(exits[0].pid, pids[1]);
  EXPECT_EQ(exits[0].signal, SIGKILL);
  EXPECT_EQ(exits[0].Describe(), "rank " + std::to_string(exits[0].rank) + " (pid " +
                                     std::to_string(pids[1]) +
                                     ") was killed by signal 9 (SIGKILL)");
  // The other ranks already wait, or detect the abort at their next wait. Rank 0 starts its next
  // wait after it has received a message.
  socket.Send("anyone there?");
  for (const RankExit& exit : group.Exits(3)) {
    EXPECT_TRUE(exit.signal == SIGKILL || exit.code == kStoppedByPeer) << exit.Describe();
  }
}

TEST(RankProcessesTest, TheWatchdogKillsARankWithoutHeartbeat) {
  RankGroup group(2, "beat", kLong, {}, milliseconds(2000));
  group.ranks().WaitJoined();
  while (group.arena()->beats(1) == 0) usleep(1000);
  const auto pids = ChildrenOf(getpid());
  ASSERT_EQ(pids.size(), 2u);
  kill(pids[1], SIGSTOP);
  const auto exits = group.Exits(1);
  EXPECT_EQ(exits[0].rank, 1);
  EXPECT_EQ(exits[0].pid, pids[1]);
  EXPECT_GE(exits[0].silent_seconds, 2);
  EXPECT_THAT(exits[0].Describe(),
              AllOf(HasSubstr("sent no heartbeat for "), HasSubstr("--watchdog-timeout")));
}

// A rank in a long computation without heartbeats is not stopped (SIGSTOP), so it is not killed.
TEST(RankProcessesTest, OnlyAStoppedRankIsKilledForAStall) {
  RankGroup group(2, "serve", kLong, {}, {}, milliseconds(300));
  group.ranks().WaitJoined();
  EXPECT_FALSE(group.HasExits(1, milliseconds(700)));
  const auto pids = ChildrenOf(getpid());
  ASSERT_EQ(pids.size(), 2u);
  kill(pids[0], SIGSTOP);
  const auto exits = group.Exits(1);
  EXPECT_EQ(exits[0].pid, pids[0]);
  EXPECT_GT(exits[0].stopped_seconds, 0);
  EXPECT_FALSE(exits[0].ByItself());
  EXPECT_THAT(exits[0].Describe(),
              AllOf(HasSubstr("was stopped for "), HasSubstr("--rank-stall-timeout")));
}

TEST(RankProcessesTest, ARankThatComputesAStepForTooLongIsKilled) {
  RankGroup group(2, "spin", kLong, {}, {}, milliseconds(300));
  const auto exits = group.Exits(1);
  EXPECT_EQ(exits[0].rank, 1);
  EXPECT_GE(exits[0].hung_seconds, 0.3);
  EXPECT_FALSE(exits[0].ByItself());
  EXPECT_THAT(exits[0].Describe(),
              AllOf(HasSubstr("without a heartbeat"), HasSubstr("--rank-stall-timeout")));
}

TEST(RankProcessesTest, ARankThatDoesNotServeNeedsNoHeartbeat) {
  RankGroup group(2, "serve", kLong, {}, milliseconds(300));
  group.ranks().WaitJoined();
  EXPECT_FALSE(group.HasExits(1, milliseconds(1000)));
  EXPECT_EQ(group.ranks().LongestSilence().rank, -1);
}

TEST(RankProcessesTest, ALaterExitReportsTheReasonOfTheFirst) {
  RankGroup group(2, "serve");
  auto socket = ControlSocket::Bind(group.endpoint());
  group.ranks().WaitJoined();
  socket.Send("hello");
  ASSERT_TRUE(socket.Receive(kLong).has_value());
  group.arena()->AbortHere("rank 1 failed: it found a fault");
  socket.Send("hello again");
  for (const RankExit& exit : group.Exits(2))
    EXPECT_EQ(exit.reason, "rank 1 failed: it found a fault");
}

TEST(RankProcessesTest, WaitJoinedEndsOnGiveUp) {
  std::atomic<bool> enough{false};
  RankProcesses ranks(SharedArena::Create(2, kBytes),
                      {.world = 2,
                       .spec = "never join",
                       .control_endpoint = ControlSocket::UniqueEndpoint(),
                       .join_timeout = kLong,
                       .give_up = [&] { return enough.exchange(true); }},
                      {});
  EXPECT_FALSE(ranks.WaitJoined());
}

TEST(RankProcessesTest, WaitJoinedNamesTheRankThatIsMissing) {
  RankGroup group(3, "never join", milliseconds(1500));
  try {
    group.ranks().WaitJoined();
    FAIL() << "rank 1 never joins";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("these ranks did not join within 1.5 s: 1"),
                                    HasSubstr("--dist-timeout")));
  }
}

TEST(RankProcessesTest, WaitJoinedNamesTheRankThatEnded) {
  RankGroup group(2, "exit before joining");
  try {
    group.ranks().WaitJoined();
    FAIL() << "rank 1 ends first";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeer);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr("exit code 3")));
  }
}

TEST(RankProcessesTest, AnUnexpectedEndIsReported) {
  RankGroup group(1, "leave");
  const auto exits = group.Exits(1);
  EXPECT_EQ(exits[0].rank, 0);
  EXPECT_EQ(exits[0].code, 0);
}

TEST(RankProcessesTest, WaitEndedKillsThoseThatStay) {
  RankGroup group(2, "serve");
  group.ranks().WaitJoined();
  EXPECT_FALSE(group.ranks().WaitEnded(milliseconds(20)));
  EXPECT_TRUE(ChildrenOf(getpid()).empty());
  EXPECT_TRUE(group.Exits(0).empty());
}

TEST(RankProcessesTest, DestructionLeavesNoProcess) {
  { RankGroup group(2, "serve"); }
  EXPECT_TRUE(ChildrenOf(getpid()).empty());
}

// A parent of ranks, run in a separate process so that it can be killed.
int ParentMain() {
  RankGroup group(2, "serve");
  group.ranks().WaitJoined();
  kill(getppid(), SIGUSR1);
  pause();
  return kGood;
}

TEST(RankProcessesTest, RanksDieWithTheirParent) {
  sigset_t ready;
  sigemptyset(&ready);
  sigaddset(&ready, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &ready, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans become this process's children, which it can reap

  const pid_t parent = SpawnSelf({"comm_test", "parent"}, CopyEnvironment(), {});
  const timespec limit{60, 0};
  ASSERT_EQ(sigtimedwait(&ready, nullptr, &limit), SIGUSR1);
  auto ranks = ChildrenOf(parent);
  ASSERT_EQ(ranks.size(), 2u);
  kill(parent, SIGKILL);
  ranks.push_back(parent);
  for (const pid_t pid : ranks) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(pid, &status, 0)) < 0 && errno == ECHILD) usleep(1000);
    EXPECT_EQ(ended, pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  pthread_sigmask(SIG_UNBLOCK, &ready, nullptr);
}

TEST(RankProcessesTest, ARankStartedByHandIsRefused) {
  for (const char* fds :
       {"", "SWITCHYARD_RANK_FDS=", "SWITCHYARD_RANK_FDS=1,99", "SWITCHYARD_RANK_FDS=0,x",
        "SWITCHYARD_RANK_FDS=-1,-1", "SWITCHYARD_RANK_FDS=1,2,3,4", "SWITCHYARD_RANK_FDS=5,",
        "SWITCHYARD_RANK_FDS=99999999999999,3"}) {
    auto environment = CopyEnvironment();
    if (*fds != '\0') environment.emplace_back(fds);
    const pid_t pid = SpawnSelf({"comm_test", "rank"}, environment, {});
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kNoSpec) << fds;
  }
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  const std::string_view part = argc == 2 ? argv[1] : "";
  if (part == "rank") return switchyard::RankMain(argc, argv);
  if (part == "parent") return switchyard::ParentMain();
  if (part.starts_with("mpi ")) return switchyard::MpiRankMain(part.substr(4));
  switchyard::InitLog("warning");
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
