#include "comm/device/cuda/peer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/test_gpu_ranks.h"
#include "comm/device/test_collectives.h"
#include "core/testing.h"

namespace switchyard::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kNoGpu = 77;

// Runs one process per rank and returns the largest exit code. Returns kNoGpu if the machine has
// fewer than `gpus` GPUs.
int RunProcesses(int gpus, const GpuRanks& ranks, const std::function<void(GpuRank&)>& body) {
  const auto arena = SharedArena::Create(ranks.shape.tp, RankComm::BytesPerRank(ranks.shape));
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks.shape.tp; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (DeviceCount() < gpus) _exit(kNoGpu);
      try {
        GpuRank gpu(arena, ranks, rank);
        body(gpu);
      } catch (const std::exception& error) {
        arena->AbortHere(error.what());
        fprintf(stderr, "rank %d: %s\n", rank, error.what());
        _exit(1);
      }
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    pids.push_back(pid);
  }
  int worst = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  }
  return worst;
}

// A sum over two ranks does not depend on their order.
void AddUp(GpuRank& gpu) {
  const auto group = MakeCollectives(*gpu.comm, gpu.memory, gpu.comm->mesh.TpGroup(), "tp",
                                     gpu.stream.get(), {.max_custom_bytes = size_t{1} << 30});
  for (unsigned salt = 0; salt < 5; ++salt) {
    const size_t count = (size_t{10} << 4 * salt) + 5;  // sizes of all kernels
    gpu.Fill(gpu.scratch.data(), Values(gpu.rank, count, salt));
    group->AllReduceSum(gpu.scratch.as<float>(), count);
    EXPECT_TRUE(SameBits(gpu.Read<float>(gpu.scratch.data(), count), SumOfAll(2, count, salt)));
  }
}

// A process that has used CUDA must not fork. googletest runs *DeathTest suites first, before CUDA
// is used.
TEST(PeerMemoryDeathTest, ProcessesReachOneAnother) {
  const int worst = RunProcesses(1, {{.tp = 2}}, AddUp);
  if (worst == kNoGpu) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(worst, 0);
}

TEST(PeerMemoryDeathTest, NcclJoinsProcessesOfSeveralHosts) {
  const int worst = RunProcesses(2, {.shape = {.tp = 2}, .ranks_per_host = 1}, AddUp);
  if (worst == kNoGpu) GTEST_SKIP() << "NCCL needs one GPU per rank";
  EXPECT_EQ(worst, 0);
}

// Rank 1 of an epoch is killed while rank 0 waits for it on the GPU. Rank 0 keeps its process for
// the next epoch. Returns an exit code.
int ServeEpochs(const std::shared_ptr<SharedArena>& arena, const GpuRanks& ranks, int rank,
                uint32_t last) {
  if (DeviceCount() == 0) return kNoGpu;
  for (;;) {
    const uint32_t epoch = arena->epoch();
    try {
      GpuRank gpu(arena, ranks, rank);
      AddUp(gpu);
      if (epoch == last) return ::testing::Test::HasFailure() ? 1 : 0;
      gpu.comm->tp->Barrier("before the end of rank 1");
      if (rank == 1) raise(SIGKILL);
      AddUp(gpu);
      return 2;  // rank 0 cannot add up alone
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kPeer || arena->AbortReason() != error.what()) {
        fprintf(stderr, "rank %d: %s\n", rank, error.what());
        return 3;
      }
    }
    if (cudaDeviceSynchronize() != cudaSuccess) return 4;
    arena->WaitForEpoch(rank, epoch);
  }
}

// The timeout of kernels is longer than the test may take.
TEST(PeerMemoryDeathTest, ARankOutlivesTheEndOfAnother) {
  constexpr uint32_t kEpochs = 4;
  const GpuRanks ranks{.shape = {.tp = 2},
                       .peer_bytes = size_t{256} << 20,  // of two AddUp
                       .timeout = std::chrono::milliseconds(600'000)};
  const auto arena = SharedArena::Create(2, RankComm::BytesPerRank(ranks.shape));
  arena->EnableEpochs();
  const auto start = [&](int rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(ServeEpochs(arena, ranks, rank, kEpochs));
    }
    return pid;
  };
  const pid_t survivor = start(0);
  int status = 0;
  for (uint32_t epoch = 1; epoch <= kEpochs; ++epoch) {
    const pid_t other = start(1);
    ASSERT_EQ(waitpid(other, &status, 0), other);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoGpu) {
      kill(survivor, SIGKILL);
      waitpid(survivor, &status, 0);
      GTEST_SKIP() << "no GPU";
    }
    if (epoch == kEpochs) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      break;
    }
    EXPECT_TRUE(WIFSIGNALED(status));
    arena->Abort("rank 1 was killed");
    while (!arena->Waits(0)) {
      ASSERT_EQ(waitpid(survivor, &status, WNOHANG), 0) << "exit code " << WEXITSTATUS(status);
      usleep(1000);
    }
    arena->BeginEpoch("");
  }
  ASSERT_EQ(waitpid(survivor, &status, 0), survivor);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(PeerMemory, RanksReadAndWriteOneAnothersMemory) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  GpuRanks{{.tp = 4}}.Run([](GpuRank& gpu) {
    EXPECT_EQ(gpu.memory.Allocate(100), 0u);
    const size_t offset = gpu.memory.Allocate(4 * sizeof(int));
    EXPECT_EQ(offset, 256u);
    EXPECT_EQ(gpu.Read<int>(gpu.memory.Local(offset), 4), std::vector<int>(4));
    gpu.comm->tp->Barrier("start");
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(gpu.memory.Pointers(offset).at[r], gpu.memory.At(r, offset));
      gpu.Fill(gpu.memory.At(r, offset + gpu.rank * sizeof(int)), std::vector<int>{10 + gpu.rank});
    }
    gpu.comm->tp->Barrier("written");
    for (int r = 0; r < 4; ++r)
      EXPECT_EQ(gpu.Read<int>(gpu.memory.At(r, offset), 4), (std::vector<int>{10, 11, 12, 13}));
    EXPECT_THAT(ErrorOf([&] { gpu.memory.Allocate(size_t{1} << 40); }, ErrorKind::kResource),
                HasSubstr("peer memory of 33554432 bytes per rank is full: 272 used"));
  });
}

std::vector<PeerInfo> Ranks(int32_t count) {
  std::vector<PeerInfo> cards(static_cast<size_t>(count));
  for (int32_t r = 0; r < count; ++r) cards[static_cast<size_t>(r)].rank = r;
  return cards;
}

TEST(PeerMemory, DescribesRanksOfStages) {
  PeerInfo card{.bus_id = {"0000:19:00.0"}, .rank = 3, .device = 2};
  EXPECT_EQ(Describe(card), "rank 3 (GPU 2, 0000:19:00.0)");
  card.stage = 1;
  EXPECT_EQ(Describe(card), "rank 3 (stage 1, GPU 2, 0000:19:00.0)");
}

TEST(PeerMemory, RefusesWorldsThatCannotShareMemory) {
  std::vector<PeerInfo> cards = Ranks(17);
  EXPECT_EQ(ErrorOf([&] { CheckPeerInfos(cards); }),
            "peer memory supports at most 16 ranks, got 17");
  cards.resize(4);
  CheckPeerInfos(cards);
  cards[3].bytes = 5;
  EXPECT_EQ(ErrorOf([&] { CheckPeerInfos(cards); }),
            "rank 3 has 5 bytes of peer memory and rank 0 0: sizes must be equal");
  cards[2].host[0] = 'x';
  EXPECT_THAT(ErrorOf([&] { CheckPeerInfos(cards); }),
              HasSubstr("ranks 0 and 2 are on different hosts: "));
}

TEST(PeerMemory, SupportsRanksOfSeveralHosts) {
  std::vector<PeerInfo> cards = Ranks(34);  // two hosts, each with one rank too many
  for (size_t r = 17; r < cards.size(); ++r) cards[r].host[0] = 'x';
  EXPECT_EQ(ErrorOf([&] { CheckPeerInfos(cards, 17); }),
            "peer memory supports at most 16 ranks, got 17");
  cards.resize(21);
  cards.erase(cards.begin(), cards.begin() + 13);  // four ranks of each host
  for (size_t r = 0; r < cards.size(); ++r) cards[r].rank = static_cast<int32_t>(r);
  CheckPeerInfos(cards, 4);
  CheckPeerInfos(cards, 2);
  EXPECT_THAT(ErrorOf([&] { CheckPeerInfos(cards, 8); }),
              HasSubstr("ranks 0 and 4 are on different hosts: "));
  cards[5].host[0] = 'y';
  EXPECT_THAT(ErrorOf([&] { CheckPeerInfos(cards, 4); }),
              HasSubstr("ranks 4 and 5 are on different hosts: "));
}

TEST(PeerMemory, ReachesRanksOfTheOwnHost) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  GpuRanks{.shape = {.tp = 4}, .ranks_per_host = 2}.Run([](GpuRank& gpu) {
    const int neighbour = gpu.rank ^ 1;
    EXPECT_TRUE(gpu.memory.OnThisHost(std::vector<int>{gpu.rank, neighbour}));
    EXPECT_FALSE(gpu.memory.OnThisHost(std::vector<int>{gpu.rank, (gpu.rank + 2) % 4}));
    const size_t offset = gpu.memory.Allocate(sizeof(int));
    gpu.comm->tp->Barrier("start");
    gpu.Fill(gpu.memory.At(neighbour, offset), std::vector<int>{10 + gpu.rank});
    gpu.comm->tp->Barrier("written");
    EXPECT_EQ(gpu.Read<int>(gpu.memory.Local(offset), 1), std::vector<int>{10 + neighbour});
  });
}

}  // namespace
}  // namespace switchyard::cuda
