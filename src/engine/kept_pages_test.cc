#include "engine/kept_pages.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <utility>
#include <vector>

namespace switchyard {
namespace {

using schedule::Kind;
using schedule::Phase;

// A rank of a prefill worker whose model has three layers.
class Published {
 public:
  Published() {
    plan_.model.layers.resize(3);
    config_.disaggregation_mode = "prefill";
    publish_ = KeptPages::PublishTo(memory_, first_, config_, plan_);
  }
  // The layers of the pass that readers see before a phase of a micro-batch.
  int64_t Before(uint64_t pass, int micro_batches, int micro_batch, int layer, Phase phase) {
    publish_(pass, micro_batches,
             {.kind = Kind::kForward, .micro_batch = micro_batch, .layer = layer, .phase = phase});
    return KeptPages::Progress(memory_).LayersOf(pass);
  }
  int64_t BeforeLogits(uint64_t pass, int micro_batches, int micro_batch) {
    publish_(pass, micro_batches, {.kind = Kind::kLogits, .micro_batch = micro_batch});
    return KeptPages::Progress(memory_).LayersOf(pass);
  }
  uint32_t rings() { return KeptPages::Bell(first_).rings(); }

 private:
  alignas(64) std::array<std::byte, 4096> memory_{}, first_{};  // of the rank, and of rank 0
  EngineConfig config_;
  EnginePlan plan_;
  std::function<void(uint64_t, int, const schedule::Operation&)> publish_;
};

TEST(KeptPages, ALayerIsPublishedAfterItsAttention) {
  Published rank;
  EXPECT_EQ(rank.Before(1, 1, 0, 0, Phase::kAttention), 0);
  EXPECT_EQ(rank.Before(1, 1, 0, 0, Phase::kRoute), 1);
  EXPECT_EQ(rank.Before(1, 1, 0, 1, Phase::kQkv), 1);
  EXPECT_EQ(rank.Before(1, 1, 0, 1, Phase::kFinish), 2);
  EXPECT_EQ(rank.BeforeLogits(1, 1, 0), 3);
  EXPECT_EQ(rank.Before(2, 1, 0, 0, Phase::kAttention), 0);
}

TEST(KeptPages, TheBellRingsForEachNumberOfLayers) {
  Published rank;
  uint32_t rings = 0;
  for (uint64_t pass = 1; pass < 4; ++pass) {
    rank.Before(pass, 1, 0, 0, Phase::kQkv);  // a pass has begun
    EXPECT_EQ(rank.rings(), ++rings);
    for (int layer = 0; layer < 3; ++layer) {
      rank.Before(pass, 1, 0, layer, Phase::kAttention);
      EXPECT_EQ(rank.rings(), rings);
      rank.Before(pass, 1, 0, layer, Phase::kRoute);
      EXPECT_EQ(rank.rings(), ++rings);
    }
    rank.BeforeLogits(pass, 1, 0);
    EXPECT_EQ(rank.rings(), rings);
  }
}

TEST(KeptPages, ALayerOfTwoMicroBatchesIsPublishedAfterBoth) {
  Published rank;
  EXPECT_EQ(rank.Before(7, 2, 0, 0, Phase::kRoute), 0);
  EXPECT_EQ(rank.Before(7, 2, 0, 1, Phase::kAttention), 0);
  EXPECT_EQ(rank.Before(7, 2, 1, 0, Phase::kExperts), 1);
  EXPECT_EQ(rank.Before(7, 2, 0, 2, Phase::kExperts), 1);
  EXPECT_EQ(rank.Before(7, 2, 1, 1, Phase::kExperts), 2);
  EXPECT_EQ(rank.BeforeLogits(7, 2, 0), 2);
  EXPECT_EQ(rank.Before(7, 2, 1, 2, Phase::kFinish), 3);
  EXPECT_EQ(rank.BeforeLogits(7, 2, 1), 3);
  // The next pass has one micro-batch.
  EXPECT_EQ(rank.Before(8, 1, 0, 0, Phase::kExperts), 1);
}

// A publication on a GPU is a kernel, so each number is published once. Two micro-batches use
// several streams.
TEST(KeptPages, AGpuPublishesEachNumberOfLayersOnce) {
  alignas(64) std::array<std::byte, 4096> memory{};
  EngineConfig config;
  config.disaggregation_mode = "prefill";
  EnginePlan plan;
  plan.model.layers.resize(2);
  plan.cuda = true;
  std::vector<std::pair<uint64_t, int64_t>> published;
  KvPublisher gpu;
  const auto before = KeptPages::PublishTo(memory, memory, config, plan, &gpu);
  gpu = [&](uint64_t pass, int64_t layers) { published.emplace_back(pass, layers); };
  const auto run = [&](uint64_t pass, int micro_batches) {
    for (int layer = 0; layer < 2; ++layer)
      for (const Phase phase : {Phase::kQkv, Phase::kAttention, Phase::kRoute, Phase::kFinish})
        for (int i = 0; i < micro_batches; ++i)
          before(pass, micro_batches,
                 {.kind = Kind::kForward, .micro_batch = i, .layer = layer, .phase = phase});
    before(pass, micro_batches, {.kind = Kind::kLogits});
  };
  run(3, 1);
  run(4, 2);
  run(5, 1);
  using Number = std::pair<uint64_t, int64_t>;
  EXPECT_EQ(published, (std::vector<Number>{{3, 1}, {3, 2}, {5, 1}, {5, 2}}));
  EXPECT_EQ(KeptPages::Progress(memory).LayersOf(5), 0);  // written by the GPU only
}

TEST(KeptPages, GpuMemoryOfOtherEnginesHasAPageForPaddingRows) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "families/qwen3_next";
  config.device = "cpu";
  config.max_total_tokens = 256;
  config.disaggregation_mode = "decode";
  EnginePlan plan = MakePlan(config);
  plan.cuda = true;
  EXPECT_EQ(KeptPages::BytesPerRank(config, plan), 4096u);
  const Mesh mesh(config.mesh, 0);
  const size_t bytes = ExportedCaches::Bytes(config, plan, mesh);
  EXPECT_EQ(bytes % kExportUnit, 0u);
  std::vector<std::byte> memory(bytes);
  KvStorage kv = KeptPages::Storage(memory, config, plan, mesh);
  EXPECT_EQ(kv.num_pages(), plan.num_pages);
  for (int64_t layer = 0; layer < plan.model.num_layers(); ++layer) {
    if (!kv.k(layer).defined()) continue;
    EXPECT_EQ(kv.k(layer).dim(0), (plan.num_pages + 1) * config.page_size);
  }
  config.disaggregation_mode = "null";
  EXPECT_EQ(KeptPages::BytesPerRank(config, plan), 0u);
}

TEST(KeptPages, StatesAreKeptForOtherEnginesOnly) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "families/qwen3_next";
  config.device = "cpu";
  config.max_total_tokens = 256;
  config.max_running_requests = 20;
  EnginePlan plan = MakePlan(config);
  EXPECT_EQ(KeptPages::BytesPerRank(config, plan), 0u);
  config.disaggregation_mode = "prefill";
  plan = MakePlan(config);
  EXPECT_EQ(plan.num_states, 5 * 20);  // a prompt keeps a state while its states are sent
  EXPECT_GT(KeptPages::BytesPerRank(config, plan),
            StateStorage::BytesPerSlot(plan.model, Mesh()) * 5 * 20);
  config.disable_radix_cache = true;
  EXPECT_EQ(MakePlan(config).num_states, 3 * 20);
}

}  // namespace
}  // namespace switchyard
