#include "comm/device/cuda/nccl_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <latch>
#include <numeric>

#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/test_gpu_ranks.h"
#include "comm/device/test_collectives.h"
#include "core/testing.h"

namespace switchyard::cuda {
namespace {

// The inputs are small integers, whose sums are exact in any order.
bool LargeIsRight(GpuRank& gpu, Collectives& group, unsigned salt) {
  constexpr size_t kCount = 1'000'003;
  std::vector<float> values(kCount), sums(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    for (int r = 0; r < group.size(); ++r)
      sums[i] += static_cast<float>((i * 7 + static_cast<size_t>(r) * 13 + salt) % 101);
    values[i] = static_cast<float>((i * 7 + static_cast<size_t>(group.rank()) * 13 + salt) % 101);
  }
  float *data = gpu.scratch.as<float>(), *copy = data + kCount;
  gpu.Fill(data, values);
  gpu.Fill(copy, values);
  group.AllReduceSum(data, kCount);
  if (!SameBits(gpu.Read<float>(data, kCount), sums)) return false;
  std::vector<size_t> counts(static_cast<size_t>(group.size())), bytes(counts.size());
  for (size_t r = 0; r < counts.size(); ++r) {
    counts[r] = r == 1 ? 0 : kCount / counts.size() / (r + 1);
    bytes[r] = counts[r] * sizeof(float);
  }
  size_t begin = 0;
  for (int r = 0; r < group.rank(); ++r) begin += counts[static_cast<size_t>(r)];
  const size_t mine = counts[static_cast<size_t>(group.rank())];
  group.ReduceScatterV(copy, copy + begin, counts);
  if (!SameBits(gpu.Read<float>(copy + begin, mine), Slice(sums, begin, mine))) return false;
  group.AllGatherV(copy + begin, copy, bytes);
  const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
  return SameBits(gpu.Read<float>(copy, total), Slice(sums, 0, total));
}

TEST(Nccl, TakesLargeMessagesOrAll) {
  const int gpus = std::min(DeviceCount(), 4);
  if (gpus < 2) GTEST_SKIP() << "NCCL needs one GPU per rank";
  GpuRanks{{.tp = gpus}}.Run([](GpuRank& gpu) {
    for (const bool custom : {true, false}) {
      const auto group =
          MakeCollectives(*gpu.comm, gpu.memory, gpu.comm->mesh.TpGroup(), "tp", gpu.stream.get(),
                          {.custom_all_reduce = custom, .max_custom_bytes = size_t{64} << 10});
      for (unsigned salt = 0; salt < 3; ++salt) EXPECT_TRUE(LargeIsRight(gpu, *group, salt));
      gpu.comm->tp->Barrier("end");
    }
  });
}

TEST(Nccl, CanBeRecorded) {
  const int gpus = std::min(DeviceCount(), 4);
  if (gpus < 2) GTEST_SKIP() << "NCCL needs one GPU per rank";
  GpuRanks{{.tp = gpus}}.Run([](GpuRank& gpu) {
    const auto group = MakeCollectives(*gpu.comm, gpu.memory, gpu.comm->mesh.TpGroup(), "tp",
                                       gpu.stream.get(), {.custom_all_reduce = false});
    constexpr size_t kCount = 1'000'000;
    float *in = gpu.scratch.as<float>(), *data = in + kCount;
    const CapturedGraph recording(gpu, [&] {
      Check(cudaMemcpyAsync(data, in, kCount * sizeof(float), cudaMemcpyDeviceToDevice,
                            gpu.stream.get()),
            "copy");
      group->AllReduceSum(data, kCount);
    });
    for (int i = 1; i < 4; ++i) {
      gpu.Fill(in, std::vector<float>(kCount, static_cast<float>(i * (gpu.rank + 1))));
      recording.Launch();
      const int size = group->size();
      EXPECT_EQ(gpu.Read<float>(data, kCount),
                std::vector<float>(kCount, static_cast<float>(i * size * (size + 1) / 2)));
    }
    gpu.comm->tp->Barrier("replayed");
  });
}

// If each rank is on its own host, everything uses NCCL.
TEST(Nccl, JoinsRanksOfSeveralHosts) {
  const int gpus = std::min(DeviceCount(), 4);
  if (gpus < 2) GTEST_SKIP() << "NCCL needs one GPU per rank";
  GpuRanks{.shape = {.tp = gpus}, .ranks_per_host = 1}.Run([](GpuRank& gpu) {
    const auto group = MakeCollectives(*gpu.comm, gpu.memory, gpu.comm->mesh.TpGroup(), "tp",
                                       gpu.stream.get(), {.max_custom_bytes = SIZE_MAX});
    NcclGroup::From(group.get());
    for (unsigned salt = 0; salt < 3; ++salt) EXPECT_TRUE(LargeIsRight(gpu, *group, salt));
    EXPECT_EQ(gpu.memory.bytes_used(), 0u);
    gpu.comm->tp->Barrier("end");
  });
}

TEST(Nccl, GroupsOfTheSameMembersShareACommunicator) {
  if (DeviceCount() < 2) GTEST_SKIP() << "needs two GPUs";
  GpuRanks{.shape = {.tp = 2, .ep = 2}}.Run([](GpuRank& gpu) {
    SharedNccl shared;
    const auto make = [&](std::vector<int> group, const char* name) {
      return MakeCollectives(*gpu.comm, gpu.memory, std::move(group), name, gpu.stream.get(),
                             {.max_custom_bytes = 0, .shared = &shared});
    };
    const std::vector<int> both = gpu.comm->mesh.TpGroup(), one = gpu.comm->mesh.MoeTpGroup();
    EXPECT_EQ(shared.Find(both), nullptr);
    const auto tp = make(both, "tp");
    const auto nccl = shared.Find(both);
    ASSERT_NE(nccl, nullptr);
    const auto ep = make(gpu.comm->mesh.EpGroup(), "ep");
    const auto moe_tp = make(one, "moe-tp");
    EXPECT_EQ(shared.Find(both), nccl);
    EXPECT_EQ(shared.Find(one), nullptr);  // one member needs no communicator
    for (unsigned salt = 0; salt < 3; ++salt) {
      EXPECT_TRUE(LargeIsRight(gpu, *tp, salt));
      EXPECT_TRUE(LargeIsRight(gpu, *ep, salt));
      EXPECT_TRUE(LargeIsRight(gpu, *moe_tp, salt));
    }
    gpu.comm->tp->Barrier("end");
  });
}

TEST(Nccl, LeavesGroupsOfOneHostToPeerMemory) {
  if (DeviceCount() < 4) GTEST_SKIP() << "needs four GPUs, two for each of two simulated hosts";
  GpuRanks{.shape = {.tp = 4, .dp = 2}, .ranks_per_host = 2}.Run([](GpuRank& gpu) {
    const auto make = [&](std::vector<int> group, const char* name) {
      return MakeCollectives(*gpu.comm, gpu.memory, std::move(group), name, gpu.stream.get(),
                             {.max_custom_bytes = SIZE_MAX});
    };
    const auto tp = make(gpu.comm->mesh.TpGroup(), "tp");
    const auto attn_tp = make(gpu.comm->mesh.AttnTpGroup(), "attn-tp");
    NcclGroup::From(tp.get());
    EXPECT_NE(dynamic_cast<PeerCollectives*>(attn_tp.get()), nullptr);
    for (unsigned salt = 0; salt < 3; ++salt) {
      EXPECT_TRUE(LargeIsRight(gpu, *tp, salt));
      EXPECT_TRUE(LargeIsRight(gpu, *attn_tp, salt));
    }
    gpu.comm->tp->Barrier("end");
  });
}

// Every pair of ranks has its own message size, which may be zero. Ranks also send messages to
// themselves.
TEST(Nccl, ExchangesMessages) {
  const int gpus = std::min(DeviceCount(), 4);
  if (gpus < 2) GTEST_SKIP() << "NCCL needs one GPU per rank";
  GpuRanks{.shape = {.tp = gpus}, .ranks_per_host = 1}.Run([](GpuRank& gpu) {
    const auto made = MakeCollectives(*gpu.comm, gpu.memory, gpu.comm->mesh.TpGroup(), "tp",
                                      gpu.stream.get(), {});
    NcclGroup& group = NcclGroup::From(made.get());
    group.ConnectPairs();
    constexpr size_t kRoom = size_t{1} << 20;
    const auto size_of = [](int from, int to, unsigned round) {
      return (static_cast<size_t>(from) * 7 + static_cast<size_t>(to) * 3 + round) % 4 * 70'001;
    };
    const auto text_of = [&](int from, int to, unsigned round) {
      const unsigned salt = static_cast<unsigned>(from * 10 + to) + round * 100;
      const std::string text = Text(size_of(from, to, round), salt);
      return std::vector<char>(text.begin(), text.end());
    };
    std::byte *from = gpu.scratch.data(), *to = from + 4 * kRoom;
    for (unsigned round = 0; round < 4; ++round) {
      std::vector<NcclMessage> sends, receives;
      for (int r = 0; r < group.size(); ++r) {
        gpu.Fill(from + r * kRoom, text_of(gpu.rank, r, round));
        sends.push_back({r, from + r * kRoom, size_of(gpu.rank, r, round)});
        receives.push_back({r, to + r * kRoom, size_of(r, gpu.rank, round)});
      }
      group.Exchange(sends, receives, gpu.stream.get());
      for (int r = 0; r < group.size(); ++r)
        EXPECT_EQ(gpu.Read<char>(to + r * kRoom, size_of(r, gpu.rank, round)),
                  text_of(r, gpu.rank, round));
    }
    gpu.comm->tp->Barrier("end");
  });
}

// NCCL kernels wait without a timeout; the host times out and aborts them.
TEST(Nccl, ATimeoutNamesTheMissingRank) {
  if (DeviceCount() < 2) GTEST_SKIP() << "NCCL needs one GPU per rank";
  std::latch told(1);
  GpuRanks{.shape = {.tp = 2},
           .timeout = std::chrono::milliseconds(1500),
           .ranks_per_host = 1,
           .host_timeout = std::chrono::milliseconds(1500)}
      .Run([&](GpuRank& gpu) {
        const auto made = MakeCollectives(*gpu.comm, gpu.memory, gpu.comm->mesh.TpGroup(), "tp",
                                          gpu.stream.get(), {});
        if (gpu.rank == 1) return told.wait();
        NcclGroup& group = NcclGroup::From(made.get());
        group.AllReduceSum(gpu.scratch.as<float>(), 3000);
        const Event end;
        end.Record(gpu.stream.get());
        const std::string said =
            ErrorOf([&] { group.watch().Wait(end.get()); }, ErrorKind::kTimeout);
        EXPECT_THAT(said, ::testing::HasSubstr("rank 1"));
        EXPECT_THAT(said, ::testing::HasSubstr("NCCL stream wait"));
        gpu.stream.Synchronize();  // no kernel is left waiting
        EXPECT_THAT(
            ErrorOf([&] { group.AllReduceSum(gpu.scratch.as<float>(), 3000); }, ErrorKind::kPeer),
            ::testing::HasSubstr("was aborted by an earlier error"));
        told.count_down();
      });
}

}  // namespace
}  // namespace switchyard::cuda
