#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/test_gpu_ranks.h"
#include "comm/device/test_collectives.h"

namespace switchyard::cuda {
namespace {

// Of small whole numbers, whose sums are the same in any order.
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
  if (gpus < 2) GTEST_SKIP() << "NCCL wants a GPU for each rank";
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
  if (gpus < 2) GTEST_SKIP() << "NCCL wants a GPU for each rank";
  GpuRanks{{.tp = gpus}}.Run([](GpuRank& gpu) {
    const auto group = MakeCollectives(*gpu.comm, gpu.memory, gpu.comm->mesh.TpGroup(), "tp",
                                       gpu.stream.get(), {.custom_all_reduce = false});
    constexpr size_t kCount = 1'000'000;
    float *in = gpu.scratch.as<float>(), *data = in + kCount;
    const Recording recording(gpu, [&] {
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

}  // namespace
}  // namespace switchyard::cuda
