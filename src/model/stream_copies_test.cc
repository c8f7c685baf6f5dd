// Copies of all experts for streams, with a backend that counts them instead of a GPU.
#include "model/stream_copies.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "core/error.h"
#include "core/testing.h"
#include "model/rank_device.h"
#include "model/weights/assembled.h"
#include "model/weights/expert_loader.h"
#include "moe/cpu/cpu_backend.h"

namespace switchyard {
namespace {

// What the layers were asked to keep.
struct Copies {
  std::vector<std::atomic<int>> of_expert;
  int reserved = 0, pinned = 0;
  int bad_expert = -1;  // cannot be kept
};

class CopyingParts : public MoeLayerParts {
 public:
  CopyingParts(MoeLayerConfig layer_config, Copies& copies)
      : MoeLayerParts(std::move(layer_config)), copies_(copies) {}
  void SetReplicas(std::vector<int32_t>) override {}
  void CheckFormats(const kernels::ExpertWeights&) const override {}
  OwnedExpert Held(int) const override { return {}; }
  std::vector<OwnedExpert> Swap(std::vector<OwnedExpert> experts) override { return experts; }
  void ReserveStreams(const kernels::ExpertWeights& like) override {
    EXPECT_GT(like.gate.n, 0);
    ++copies_.reserved;
  }
  void KeepForStreams(int32_t logical, const kernels::ExpertWeights& expert) override {
    EXPECT_GT(copies_.reserved, 0);
    EXPECT_EQ(copies_.pinned, 0);
    EXPECT_NE(expert.down.data, nullptr);
    if (logical == copies_.bad_expert) throw Invalid("expert {} cannot be kept", logical);
    ++copies_.of_expert[logical];
  }
  void PinStreams() override { ++copies_.pinned; }

 private:
  Copies& copies_;
};

class CopyingMoe : public CpuMoeBackend {
 public:
  CopyingMoe(const MoeShape& shape, RankComm& comm, ThreadPool& pool, Copies& copies)
      : CpuMoeBackend({}, shape, comm, pool, BuiltinMoeBackends()), copies_(copies) {}
  std::unique_ptr<MoeLayerParts> Place(MoeLayerConfig config, MoeLayerWeights) override {
    return std::make_unique<CopyingParts>(std::move(config), copies_);
  }

 private:
  Copies& copies_;
};

ModelOptions StreamingOptions() {
  ModelOptions options{.dtype = DType::kF32, .max_tokens = 16};
  options.moe.stream_tokens = 8;
  options.gpu = GpuOptions{};
  return options;
}

// Calls `keep` with layers of the model, of which the first one has no experts.
void WithLayers(const ModelConfig& config, Copies& copies,
                const std::function<void(const std::vector<std::unique_ptr<MoeLayer>>&)>& keep) {
  const MoeShape shape = MoeShapeOf(config, 16);
  const MeshShape mesh;
  const size_t bytes = RankComm::BytesPerRank(mesh) + MoeSymmetricBytes({}, shape, mesh);
  RunRankThreads(1, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), mesh, rank);
    ThreadPool pool(1);
    const auto backend = std::make_shared<CopyingMoe>(shape, *comm, pool, copies);
    MoeLayerConfig layer{.hidden = config.expert_row_width(),
                         .router = config.moe->router,
                         .activation = config.activation};
    std::vector<std::unique_ptr<MoeLayer>> layers(config.layers.size());
    for (size_t i = 1; i < layers.size(); ++i) {
      layer.layer = static_cast<int>(i);
      layers[i] = std::make_unique<MoeLayer>(layer, MoeLayerWeights{}, backend);
    }
    keep(layers);
  });
}

ModelConfig CopiedConfig() {
  ModelConfig config = LoadModelConfig(testing::FixtureDir("qwen3_moe"));
  config.layers[0].moe = false;
  return config;
}

TEST(StreamCopiesTest, OnlyGpusThatStreamHaveCopies) {
  const ModelConfig config = CopiedConfig();
  ModelOptions options = StreamingOptions();
  size_t bytes = 0;
  const ExpertLoader loader(testing::FixtureDir("qwen3_moe"), config, Mesh(), {});
  for (size_t i = 1; i < config.layers.size(); ++i)
    bytes += loader.BytesPerExpert(static_cast<int64_t>(i)) * config.moe->router.num_experts;
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(StreamCopyBytes(config, Mesh(), options), bytes);
  options.gpu.reset();
  EXPECT_EQ(StreamCopyBytes(config, Mesh(), options), 0u);
  options = StreamingOptions();
  options.moe.stream_tokens = 0;
  EXPECT_EQ(StreamCopyBytes(config, Mesh(), options), 0u);
}

TEST(StreamCopiesTest, WeightsAndCopiesHaveOneProgress) {
  const ModelConfig config = CopiedConfig();
  ModelOptions options = StreamingOptions();
  std::vector<std::pair<size_t, size_t>> reports;
  options.load.progress = [&](size_t done, size_t total) { reports.emplace_back(done, total); };
  const size_t copies = StreamCopyBytes(config, Mesh(), options);
  BeforeStreamCopies(config, Mesh(), options).progress(60, 100);
  Copies kept{.of_expert = std::vector<std::atomic<int>>(config.moe->router.num_experts)};
  WithLayers(config, kept, [&](const auto& layers) {
    KeepForStreams(layers, testing::FixtureDir("qwen3_moe"), config, Mesh(), options, 100);
  });
  const auto layers = static_cast<int>(config.layers.size()) - 1;
  for (const std::atomic<int>& times : kept.of_expert) EXPECT_EQ(times.load(), layers);
  EXPECT_EQ(kept.reserved, layers);
  EXPECT_EQ(kept.pinned, layers);
  ASSERT_GE(reports.size(), 3u);
  EXPECT_EQ(reports[0], (std::pair<size_t, size_t>(60, 100 + copies)));
  for (size_t i = 1; i < reports.size(); ++i) {
    EXPECT_GE(reports[i].first, reports[i - 1].first);
    EXPECT_EQ(reports[i].second, 100 + copies);
  }
  EXPECT_GT(reports[1].first, 100u);
  EXPECT_EQ(reports.back().first, 100 + copies);
}

TEST(StreamCopiesTest, AnErrorOfOneThreadEndsTheLoad) {
  const ModelConfig config = CopiedConfig();
  Copies kept{.of_expert = std::vector<std::atomic<int>>(config.moe->router.num_experts),
              .bad_expert = 3};
  const auto run = [&] {
    WithLayers(config, kept, [&](const auto& layers) {
      KeepForStreams(layers, testing::FixtureDir("qwen3_moe"), config, Mesh(), StreamingOptions(),
                     0);
    });
  };
  EXPECT_EQ(ErrorOf(run, ErrorKind::kInvalid), "expert 3 cannot be kept");
  EXPECT_EQ(kept.pinned, 0);
}

}  // namespace
}  // namespace switchyard
