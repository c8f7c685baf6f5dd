#include "comm/device/cuda/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/device/cuda/test_gpu_ranks.h"
#include "comm/device/test_collectives.h"
#include "core/testing.h"

namespace switchyard::cuda {
namespace {

// Unequal counts, some of them zero.
std::vector<size_t> Ragged(int size, size_t count, unsigned salt) {
  std::vector<size_t> counts(static_cast<size_t>(size));
  for (unsigned r = 0; r < counts.size(); ++r)
    counts[r] = (r + salt) % 3 == 0 ? 0 : count / (1 + (r + salt) % 5);
  return counts;
}

bool AllReduceIsRight(GpuRank& gpu, Collectives& group, size_t count, size_t offset,
                      unsigned salt) {
  float* data = gpu.scratch.as<float>() + offset;
  gpu.Fill(data, Values(group.rank(), count + 1, salt));
  group.AllReduceSum(data, count);
  auto expected = SumOfAll(group.size(), count, salt);
  expected.push_back(Values(group.rank(), count + 1, salt).back());  // must stay unchanged
  return SameBits(gpu.Read<float>(data, count + 1), expected);
}

bool AllGatherIsRight(GpuRank& gpu, Collectives& group, size_t bytes, size_t offset,
                      unsigned salt) {
  auto counts = Ragged(group.size(), bytes, salt);
  if (offset % 16 == 0)
    for (size_t& n : counts) n -= n % 16;
  std::string expected;
  size_t begin = 0;
  for (unsigned r = 0; r < counts.size(); ++r) {
    if (static_cast<int>(r) == group.rank()) begin = expected.size();
    expected += Text(counts[r], salt * 100 + r);
  }
  const size_t own = static_cast<size_t>(group.rank());
  const std::string mine = Text(counts[own], salt * 100 + static_cast<unsigned>(group.rank()));
  std::byte* out = gpu.scratch.data() + offset;
  // The input is in place; or out of place and aligned; or out of place and aligned on rank 0 only.
  std::byte* apart = gpu.scratch.data() + gpu.scratch.bytes() / 2;
  std::byte* in = salt % 2 == 0 ? out + begin : apart + (salt % 4 == 1 ? 0 : group.rank());
  gpu.Fill(out, std::vector<char>(expected.size() + 1, '?'));
  gpu.Fill(in, std::vector<char>(mine.begin(), mine.end()));
  group.AllGatherV(in, out, counts);
  const auto seen = gpu.Read<char>(out, expected.size() + 1);
  return std::string(seen.begin(), seen.end()) == expected + '?';
}

bool ReduceScatterIsRight(GpuRank& gpu, Collectives& group, size_t count, size_t offset,
                          unsigned salt) {
  const auto counts = Ragged(group.size(), count, salt);
  const auto own = static_cast<size_t>(group.rank());
  size_t total = 0, begin = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    if (r == own) begin = total;
    total += counts[r];
  }
  float* in = gpu.scratch.as<float>() + offset;
  float* out = salt % 2 == 0 ? in + begin
                             : gpu.scratch.as<float>() + gpu.scratch.bytes() / 8 + offset + salt;
  const auto values = Values(group.rank(), total + 1, salt);
  gpu.Fill(in, values);
  group.ReduceScatterV(in, out, counts);
  if (!SameBits(gpu.Read<float>(out, counts[own]),
                Slice(SumOfAll(group.size(), total, salt), begin, counts[own])))
    return false;
  auto expected = values;  // `in` is unchanged, except for the own part of in-place output
  if (salt % 2 == 0) {
    const auto sums = Slice(SumOfAll(group.size(), total, salt), begin, counts[own]);
    std::ranges::copy(sums, expected.begin() + static_cast<ptrdiff_t>(begin));
  }
  return SameBits(gpu.Read<float>(in, total + 1), expected);
}

constexpr size_t kCounts[] = {0, 1, 3, 4, 7, 1000, 4096, 20'001, 33'333, 262'144, 600'001};

class OverPeerMemory : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  }
  GpuRanks ranks_{{.tp = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Ranks, OverPeerMemory, ::testing::Values(1, 2, 3, 4));

TEST_P(OverPeerMemory, AllReduceAddsInGroupOrder) {
  ranks_.Run([](GpuRank& gpu) {
    PeerCollectives group(gpu.memory, gpu.comm->mesh.TpGroup(), gpu.stream.get());
    gpu.comm->tp->Barrier("start");
    unsigned salt = 0;
    for (const auto& [tagged, one_shot] : {std::pair<size_t, size_t>(kMaxTaggedBytes, 1 << 18),
                                           {0, 1 << 30},
                                           {0, 0},
                                           {10'000, 100'000}}) {
      group.SetLimits(tagged, one_shot);
      for (const size_t count : kCounts)
        for (const size_t offset : {0, 1})
          EXPECT_TRUE(AllReduceIsRight(gpu, group, count, offset, ++salt))
              << count << " floats, offset " << offset << ", limits " << tagged << ' ' << one_shot;
    }
  });
}

TEST_P(OverPeerMemory, AllGatherTakesRaggedAndUnalignedParts) {
  ranks_.Run([](GpuRank& gpu) {
    PeerCollectives group(gpu.memory, gpu.comm->mesh.TpGroup(), gpu.stream.get());
    gpu.comm->tp->Barrier("start");
    unsigned salt = 0;
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{17}, size_t{4096}, size_t{70'001}, size_t{3'000'000}})
      for (const size_t offset : {0, 1, 16, 23, 32})
        EXPECT_TRUE(AllGatherIsRight(gpu, group, bytes, offset, ++salt))
            << bytes << " bytes, offset " << offset;
  });
}

TEST_P(OverPeerMemory, ReduceScatterTakesRaggedPartsAndItsOwnPlace) {
  ranks_.Run([](GpuRank& gpu) {
    PeerCollectives group(gpu.memory, gpu.comm->mesh.TpGroup(), gpu.stream.get());
    gpu.comm->tp->Barrier("start");
    unsigned salt = 0;
    for (const size_t count : kCounts)
      for (const size_t offset : {0, 1, 2, 4})
        EXPECT_TRUE(ReduceScatterIsRight(gpu, group, count, offset, ++salt))
            << count << " floats, offset " << offset;
  });
}

// Operations directly after one another: data of one operation must not appear in the next,
// whichever blocks the two operations use.
TEST_P(OverPeerMemory, OperationsFollowOneAnother) {
  ranks_.Run([](GpuRank& gpu) {
    PeerCollectives group(gpu.memory, gpu.comm->mesh.TpGroup(), gpu.stream.get());
    constexpr int kSteps = 60;
    const size_t room = gpu.scratch.bytes() / sizeof(float) / kSteps;
    std::mt19937 random(3);
    std::vector<size_t> counts;
    for (unsigned i = 0; i < kSteps; ++i) {
      counts.push_back(random() % (random() % 3 == 0 ? room : 3000));
      gpu.Fill(gpu.scratch.as<float>() + i * room, Values(group.rank(), counts[i], i));
    }
    gpu.comm->tp->Barrier("start");
    for (size_t i = 0; i < kSteps; ++i)
      group.AllReduceSum(gpu.scratch.as<float>() + i * room, counts[i]);
    for (unsigned i = 0; i < kSteps; ++i) {
      EXPECT_TRUE(SameBits(gpu.Read<float>(gpu.scratch.as<float>() + i * room, counts[i]),
                           SumOfAll(group.size(), counts[i], i)))
          << "step " << i << ", " << counts[i] << " floats";
    }
  });
}

TEST_P(OverPeerMemory, RoundNumbersMayWrap) {
  ranks_.Run([](GpuRank& gpu) {
    PeerCollectives group(gpu.memory, gpu.comm->mesh.TpGroup(), gpu.stream.get());
    if (group.size() > 1)  // the first buffer of peer memory: flags and round counters
      gpu.Fill(gpu.memory.Local(0), std::vector<uint32_t>(2 * kFlagBytes / 4, uint32_t(-6)));
    gpu.comm->tp->Barrier("start");
    for (unsigned salt = 0; salt < 8; ++salt) {
      group.SetLimits(salt % 3 == 0 ? kMaxTaggedBytes : 0, salt % 3 == 1 ? 0 : size_t{1} << 30);
      EXPECT_TRUE(AllReduceIsRight(gpu, group, 2000, 0, salt)) << salt;
    }
  });
}

TEST_P(OverPeerMemory, RecordedOperationsCanBeReplayed) {
  ranks_.Run([](GpuRank& gpu) {
    const auto group = MakeCollectives(*gpu.comm, gpu.memory, gpu.comm->mesh.TpGroup(), "tp",
                                       gpu.stream.get(), {.max_custom_bytes = size_t{1} << 30});
    constexpr size_t kCount = 50'001;
    const auto size = static_cast<size_t>(group->size()), rank = static_cast<size_t>(group->rank());
    float *in = gpu.scratch.as<float>(), *data = in + kCount, *all = data + kCount;
    const std::vector<size_t> counts(size, kCount * sizeof(float));
    const CapturedGraph recording(gpu, [&] {
      Check(cudaMemcpyAsync(data, in, kCount * sizeof(float), cudaMemcpyDeviceToDevice,
                            gpu.stream.get()),
            "copy");
      group->AllReduceSum(data, kCount);
      group->AllGatherV(data, all, counts);
    });
    for (unsigned salt = 0; salt < 5; ++salt) {
      gpu.Fill(in, Values(group->rank(), kCount, salt));
      recording.Launch();
      const auto sum = SumOfAll(group->size(), kCount, salt);
      for (size_t r = 0; r < size; ++r)
        EXPECT_TRUE(SameBits(gpu.Read<float>(all + r * kCount, kCount), sum)) << salt << " " << r;
      EXPECT_TRUE(SameBits(gpu.Read<float>(in, kCount), Values(group->rank(), kCount, salt)))
          << rank;
    }
    gpu.comm->tp->Barrier("replayed");
  });
}

TEST(CudaCollectives, GroupsOfTheMeshWorkSideBySide) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  GpuRanks{{.tp = 4, .ep = 2}}.Run([](GpuRank& gpu) {
    const auto make = [&](std::vector<int> group, const char* name) {
      return MakeCollectives(*gpu.comm, gpu.memory, std::move(group), name, gpu.stream.get(), {});
    };
    const auto ep = make(gpu.comm->mesh.EpGroup(), "ep");
    const auto moe_tp = make(gpu.comm->mesh.MoeTpGroup(), "moe-tp");
    const auto attn_tp = make(gpu.comm->mesh.AttnTpGroup(), "attn-tp");
    for (unsigned salt = 0; salt < 4; ++salt) {
      EXPECT_TRUE(AllReduceIsRight(gpu, *ep, 5000, 0, salt));
      EXPECT_TRUE(AllReduceIsRight(gpu, *attn_tp, 700, 0, salt));
      EXPECT_TRUE(ReduceScatterIsRight(gpu, *moe_tp, 5000, 0, salt));
    }
  });
}

TEST(CudaCollectives, AMissingRankEndsTheWaitOfOthers) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  GpuRanks{.shape = {.tp = 2}, .timeout = std::chrono::milliseconds(300)}.Run([](GpuRank& gpu) {
    PeerCollectives group(gpu.memory, gpu.comm->mesh.TpGroup(), gpu.stream.get());
    gpu.comm->tp->Barrier("start");
    if (gpu.rank == 0) {
      for (int i = 0; i < 100; ++i)  // the first one times out; the others return immediately
        group.AllReduceSum(gpu.scratch.as<float>(), 3000);
      gpu.stream.Synchronize();
      const std::string said = ErrorOf([&] { gpu.memory.CheckTimeouts(); }, ErrorKind::kTimeout);
      EXPECT_THAT(said, ::testing::StartsWith("rank 0 (GPU 0, "));
      EXPECT_THAT(said, ::testing::HasSubstr(" waited 0.3 s for rank 1 (GPU "));
      EXPECT_THAT(said, ::testing::HasSubstr(" in all-reduce (round "));
    }
    gpu.comm->tp->Barrier("end");
  });
}

}  // namespace
}  // namespace switchyard::cuda
