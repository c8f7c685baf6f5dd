#include "engine/gpu_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing.h"
#include "engine/host_memory.h"
#include "engine/memory_plan.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<GpuInfo> Gpus(const std::vector<int64_t>& free_gib) {
  std::vector<GpuInfo> gpus;
  gpus.reserve(free_gib.size());
  for (const int64_t free : free_gib)
    gpus.push_back({.name = "H200", .total_bytes = 140 * kGiB, .free_bytes = free * kGiB});
  return gpus;
}

TEST(ChooseGpusTest, AutoTakesThemWhereTheyAre) {
  EngineConfig config;
  EXPECT_FALSE(ChooseGpus(config, 2, {}));
  EXPECT_TRUE(ChooseGpus(config, 2, Gpus({139, 139})));
  config.device = "cpu";
  EXPECT_FALSE(ChooseGpus(config, 2, Gpus({139, 139})));
}

TEST(ChooseGpusTest, RefusesWhatIsNotThere) {
  EngineConfig config;
  config.device = "cuda";
  EXPECT_THAT(ErrorOf([&] { ChooseGpus(config, 1, {}); }), HasSubstr("no GPU was found"));
  EXPECT_THAT(ErrorOf([&] {
                ChooseGpus(config, 4, Gpus({139, 139}));
              }),
              HasSubstr("the 4 ranks of this host use GPU numbers up to 3, but there are 2 GPUs"));
  config.gpu_id_step = 0;
  EXPECT_TRUE(ChooseGpus(config, 4, Gpus({139, 139})));
  config.base_gpu_id = 2;
  EXPECT_THAT(ErrorOf([&] {
                ChooseGpus(config, 1, Gpus({139, 139}));
              }),
              HasSubstr("--base-gpu-id"));
}

TEST(ChooseGpusTest, NamesTheGpuThatAnotherProcessUses) {
  EngineConfig config;
  const auto gpus = Gpus({139, 139, 100, 139});
  EXPECT_THAT(ErrorOf([&] { ChooseGpus(config, 4, gpus); }, ErrorKind::kResource),
              HasSubstr("GPU 2 (H200) has 100.0 GiB free, GPU 0 has 139.0"));
  EXPECT_TRUE(ChooseGpus(config, 2, gpus));  // GPU 2 is not used
}

// Spares have a CUDA context on each GPU, and so has a server process that copies KV rows.
TEST(MemoryBudgetTest, ContextsOfOtherProcessesReduceTheMemoryOfAGpu) {
  const HostMemory memory{.total = 80 * kGiB, .available = 79 * kGiB};
  EngineConfig config;
  const int64_t alone = MemoryBudget(memory, config, /*cuda=*/true);
  const int64_t on_host = MemoryBudget(memory, config, /*cuda=*/false);
  config.spare_ranks = 2;
  EXPECT_EQ(MemoryBudget(memory, config, /*cuda=*/true), alone - 2 * kGpuContextBytes);
  config.disaggregation_mode = "decode";
  EXPECT_EQ(MemoryBudget(memory, config, /*cuda=*/true), alone - 3 * kGpuContextBytes);
  EXPECT_EQ(MemoryBudget(memory, config, /*cuda=*/false), on_host);
  config.mesh.tp = 2;  // a former spare keeps the GPUs of other ranks until its first epoch ends
  EXPECT_EQ(MemoryBudget(memory, config, /*cuda=*/true), alone - 5 * kGpuContextBytes);
}

}  // namespace
}  // namespace switchyard
