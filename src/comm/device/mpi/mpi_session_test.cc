// Runs this test program again, under mpirun, as ranks that each run a part of a test.
#include "comm/device/mpi/mpi_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <thread>

#include "comm/device/communicator.h"
#include "comm/device/mpi/test_mpi_rank.h"
#include "comm/device/test_collectives.h"
#include "comm/host/launcher.h"
#include "core/error.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr size_t kBytes = size_t{4} << 20;
constexpr SymmetricMemory::Options kOptions{.timeout = milliseconds(60'000)};

void Require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

void CheckCollectives(const std::shared_ptr<SharedArena>& arena, int rank) {
  SymmetricMemory memory(arena, rank, kOptions);
  {
    constexpr size_t kStaging = 4096;
    Communicator comm(memory, World(memory.world()), "tp", kStaging);
    RandomCollectives(comm, kStaging).Run(100);
  }
  Communicator comm(memory, World(memory.world()), "tp", size_t{2} << 20);
  auto data = Values(rank, 400'000, 3);
  comm.AllReduceSum(data.data(), data.size());
  Require(SameBits(data, SumOfAll(memory.world(), data.size(), 3)), "a long sum differs");
}

// Puts of many ranges, long and short, and concurrent fetches in both directions.
void CheckRanges(const std::shared_ptr<SharedArena>& arena, int rank) {
  constexpr size_t kSize = 100'000;
  SymmetricMemory memory(arena, rank, kOptions);
  const size_t written = memory.Allocate(kSize), read = memory.Allocate(kSize);
  const size_t flag = memory.Allocate(4), done = memory.Allocate(4);
  const int size = memory.world(), to = (rank + 1) % size, from = (rank + size - 1) % size;
  const size_t strides[] = {7, 100, 5000};
  for (uint32_t round = 1; round <= 30; ++round) {
    const size_t stride = strides[round % 3];
    std::memset(memory.At(to, written), static_cast<int>(round), kSize);
    std::memset(memory.Local(read), static_cast<int>(round + 100), kSize);
    for (size_t begin = 0; begin + stride <= kSize; begin += 2 * stride) {
      memory.Wrote(to, written + begin, stride - 1);
    }
    memory.Raise(to, flag, round);
    memory.Wait(flag, round, from, "rows");
    for (size_t begin = 0; begin + stride <= kSize; begin += 2 * stride) {
      Require(memory.Local(written)[begin] == std::byte(round) &&
                  memory.Local(written)[begin + stride - 2] == std::byte(round),
              "a row differs");
    }
    memory.Fetch(from, read, kSize, "pull");
    for (size_t i = 0; i < kSize; ++i) {
      Require(memory.At(from, read)[i] == std::byte(round + 100), "a fetched row differs");
    }
    memory.Raise(from, done, round);
    memory.Wait(done, round, to, "rows are pulled");
  }
}

// Heartbeats reach rank 0, and those of rank 0 reach the others.
void CheckBeats(const std::shared_ptr<SharedArena>& arena, int rank) {
  SymmetricMemory memory(arena, rank, kOptions);
  Communicator comm(memory, World(memory.world()), "tp", 4096);
  const auto wait_until = [&](bool beating) {
    const auto give_up = std::chrono::steady_clock::now() + kOptions.timeout;
    for (int seen = 0; seen < (rank == 0 ? memory.world() : 1);) {
      Require(std::chrono::steady_clock::now() < give_up, "a heartbeat did not arrive");
      memory.Beat();
      if ((arena->beats(seen) > 0) == beating) {
        ++seen;
      } else {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  };
  memory.StartHeartbeat();
  wait_until(true);
  comm.Barrier("all seen");
  memory.StopHeartbeat();
  wait_until(false);
  comm.Barrier("all ended");
}

// Rank 1 fails; the others receive the abort while they wait.
int Fail(const std::shared_ptr<SharedArena>& arena, int rank) {
  SymmetricMemory memory(arena, rank, kOptions);
  if (rank == 1) {
    arena->Abort("rank 1 failed: no coal");
  }
  try {
    memory.Wait(memory.Allocate(4), 1, 1, "departure", /*idle=*/true);
  } catch (const Error& error) {
    std::printf("rank %d heard: %s\n", rank, error.what());
  }
  std::fflush(stdout);
  return 3;
}

struct Output {
  int code = -1;
  std::string text;
};

// `more`: further arguments of mpirun, after the command of the ranks.
Output RunUnderMpi(int ranks, const std::string& part, const std::string& more = {}) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  // Allows root, more ranks than cores, and ranks without access to each other's memory, as in
  // containers. Leak detection is off because OpenMPI leaks at exit.
  const std::string command = fmt::format(
      "ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_btl_vader_single_copy_mechanism=none "
      "mpirun --oversubscribe -n {} '{}' 'mpi {}' {} 2>&1",
      ranks, self, part, more);
  FILE* pipe = popen(command.c_str(), "r");
  Output output;
  char line[512];
  while (fgets(line, sizeof line, pipe) != nullptr) output.text += line;
  const int status = pclose(pipe);
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

class MpiSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "OpenMPI is not built with the thread sanitizer, which thus misses its locks";
#endif
    if (!MpiSession::Built()) GTEST_SKIP() << "built without MPI";
    if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "no mpirun";
  }
};

TEST_F(MpiSessionTest, CollectivesHaveTheBitsOfSharedMemory) {
  const Output output = RunUnderMpi(3, "collectives");
  EXPECT_EQ(output.code, 0) << output.text;
}

TEST_F(MpiSessionTest, RangesArriveBeforeTheirFlagAndFetchesCross) {
  const Output output = RunUnderMpi(3, "ranges");
  EXPECT_EQ(output.code, 0) << output.text;
}

TEST_F(MpiSessionTest, HeartbeatsReachRank0AndThoseOfRank0ReachTheOthers) {
  const Output output = RunUnderMpi(3, "beats");
  EXPECT_EQ(output.code, 0) << output.text;
}

TEST_F(MpiSessionTest, AllGetWhatRank0Decides) {
  const Output output = RunUnderMpi(3, "agree");
  EXPECT_EQ(output.code, 0) << output.text;
}

TEST_F(MpiSessionTest, AFailureReachesTheOthers) {
  const Output output = RunUnderMpi(3, "fail");
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.text, HasSubstr("heard: rank 1 failed: no coal"));
}

TEST_F(MpiSessionTest, AnotherWorldThanTheLaunchersIsRefused) {
  const Output output = RunUnderMpi(1, "world of 4");
  EXPECT_THAT(output.text, HasSubstr("srun started 4 processes, but MPI sees 1"));
}

// The first process waits in MPI_Init for the other one, which never calls it.
TEST_F(MpiSessionTest, AWaitInMpiInitHasADeadline) {
  const Output output = RunUnderMpi(1, "wait", ": -n 1 sleep 1000");
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.text, HasSubstr("abandoned: rank 0 waited 0.3 s in MPI_Init for the other 1 "
                                     "processes that srun started."));
}

TEST_F(MpiSessionTest, AWaitInMpiInitEndsOnRequest) {
  const Output output = RunUnderMpi(1, "stop", ": -n 1 sleep 1000");
  EXPECT_NE(output.code, 0);
  EXPECT_THAT(output.text, HasSubstr("abandoned: ."));
}

}  // namespace

int MpiRankMain(std::string_view part) {
  try {
    LaunchedRank launched = part == "world of 4" ? LaunchedRank{} : FindLauncher().value();
    if (part == "world of 4") launched.world = 4;
    launched.launcher = "srun";
    const int claimed = launched.world;
    const bool waits = part == "wait";
    const auto session =
        MpiSession::Start(launched, {.timeout = milliseconds(waits ? 300 : 60'000),
                                     .give_up = [&] { return part == "stop"; },
                                     .abandon =
                                         [](const std::string& why) {
                                           std::printf("abandoned: %s.\n", why.c_str());
                                           std::fflush(stdout);
                                           _exit(9);
                                         }});
    const int rank = session->rank();
    const auto decided = session->Agree(
        fmt::format("rank {}", rank), [](const std::vector<std::string>& statements) {
          return fmt::format("{} of {}", statements.back(), statements.size());
        });
    const std::string& decision = decided.value();
    const auto arena = SharedArena::Create(claimed, kBytes);
    session->Attach(*arena);
    if (part == "fail") return Fail(arena, rank);
    if (part == "collectives") CheckCollectives(arena, rank);
    if (part == "ranges") CheckRanges(arena, rank);
    if (part == "beats") CheckBeats(arena, rank);
    if (part == "agree") Require(decision == "rank 2 of 3", decision.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace switchyard
