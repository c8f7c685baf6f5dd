// Moving a model's experts between passes changes no bit of its logits, and its memory use does not
// grow.
#include "model/movable_layers.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "comm/device/rank_threads.h"
#include "kernels/testing.h"
#include "model/model.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using kernels::SameBits;

constexpr int kRanks = 4, kRedundant = 4, kTokens = 7;
constexpr MeshShape kMesh{.tp = kRanks, .ep = kRanks};

std::filesystem::path Fixture(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

// Every expert once and some more often, at random slots; equal on every rank.
ExpertPlacement Somewhere(int experts, uint32_t seed) {
  kernels::Random random(seed);
  std::vector<int32_t> map = random.Shuffled(experts);
  for (int i = 0; i < kRedundant; ++i) map.push_back(static_cast<int32_t>(random.Below(experts)));
  std::rotate(map.begin(), map.begin() + random.Below(experts), map.end());
  return {experts, map};
}

struct Variant {
  std::string fixture;
  std::string method;                // --quantization
  std::string load_format = "auto";  // --load-format
  bool int8_rows = false;            // 4-bit weights are panels, and their rows int8
};

class OneModel {
 public:
  OneModel(const Variant& variant, RankComm& comm, ThreadPool& pool)
      : config_(ConfigOf(variant)),
        model_(Fixture(variant.fixture), config_, OptionsOf(variant), comm, pool),
        kv_(model_.MakeCache(4, 4, DType::kF32)) {}

  static ModelConfig ConfigOf(const Variant& variant) {
    ModelConfig config = LoadModelConfig(Fixture(variant.fixture), {}, {.method = variant.method});
    config.quantization.int8_group_rows = variant.int8_rows;
    return config;
  }
  static ModelOptions OptionsOf(const Variant& variant) {
    ModelOptions options{.dtype = DType::kF32, .max_tokens = 16};
    options.moe.a2a_backend = "deepep";
    options.moe.num_redundant_experts = kRedundant;
    options.movable_experts = true;
    options.page_size = 4;
    options.load.load_format = variant.load_format;
    return options;
  }

  // The logits of a prompt.
  std::vector<float> Logits() {
    ForwardBatch batch;
    for (int32_t i = 0; i < kTokens; ++i) {
      batch.tokens.push_back(3 * i + 1);
      batch.positions.push_back(i);
      batch.slots.push_back(i);
      batch.logit_rows.push_back(i);
    }
    const int32_t pages[] = {0, 1};
    batch.sequences.push_back({.row_begin = 0, .rows = kTokens, .kv_len = kTokens, .pages = pages});
    batch.group_tokens = batch.group_logit_rows = {kTokens};
    batch.group_decode_tokens = {0};
    const auto logits = model_.Forward(batch, kv_);
    return {logits.begin(), logits.end()};
  }
  // Moves the experts of all layers; returns the number of loaded experts.
  int Move(uint32_t seed) {
    MovableExperts& experts = *model_.movable_experts();
    int loaded = 0;
    for (const int layer : experts.layers()) {
      const auto placement = Somewhere(config_.moe->router.num_experts, seed + layer);
      size_t bytes = 0;
      PreparedLayer prepared =
          experts.Prepare(layer, placement, {}, [&](size_t more) { bytes += more; });
      EXPECT_EQ(bytes > 0, prepared.loaded > 0);
      loaded += prepared.loaded;
      experts.Switch(std::move(prepared));
      EXPECT_TRUE(std::ranges::equal(experts.PlacementOf(layer).physical_to_logical(),
                                     placement.physical_to_logical()));
    }
    return loaded;
  }

 private:
  const ModelConfig config_;
  Model model_;
  KvStorage kv_;
};

void OnRanks(const Variant& variant, const std::function<void(OneModel&, RankComm&)>& body) {
  const size_t bytes =
      SymmetricBytesPerRank(OneModel::ConfigOf(variant), OneModel::OptionsOf(variant), kMesh);
  RunRankThreads(kRanks, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    ThreadPool pool(1);
    const auto comm = RankComm::Create(std::move(arena), kMesh, rank);
    OneModel model(variant, *comm, pool);
    body(model, *comm);
  });
}

TEST(MovableLayers, LogitsDoNotDependOnThePlacement) {
  for (const Variant& variant : {Variant{"qwen3_moe"}, Variant{"deepseek_v3_fp8"},
                                 Variant{"gpt_oss"}, Variant{"gpt_oss", "", "auto", true},
                                 Variant{"qwen2_moe", "int4"}, Variant{"mixtral", "", "dummy"}}) {
    SCOPED_TRACE(variant.fixture);
    OnRanks(variant, [](OneModel& model, RankComm&) {
      const std::vector<float> want = model.Logits();
      int loaded = 0;
      for (uint32_t i = 0; i < 12; ++i) {
        loaded += model.Move(100 * i);
        ASSERT_TRUE(SameBits(model.Logits(), want)) << "after move " << i;
      }
      EXPECT_GT(loaded, 12);
    });
  }
}

// Allocated bytes of malloc, in all threads.
size_t InUse() {
  // The first call initializes glibc's heap, which is unused under sanitizers. glibc does not guard
  // it against other threads.
  [[maybe_unused]] static const struct mallinfo2 first = mallinfo2();
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(MovableLayers, ThousandMovesLeakNoMemory) {
  for (const Variant& variant : {Variant{"qwen3_moe"}, Variant{"qwen3_moe", "int4"}}) {
    SCOPED_TRACE(variant.method);
    size_t before = 0, after = 0;
    OnRanks(variant, [&](OneModel& model, RankComm& comm) {
      const auto move = [&](uint32_t begin, uint32_t end) {
        for (uint32_t i = begin; i < end; ++i) model.Move(100 * i);
        comm.tp->Barrier("test");
        const size_t used = InUse();
        comm.tp->Barrier("test");
        return used;
      };
      // A thread's first moves fill malloc's per-thread caches.
      const size_t first = move(0, 50), last = move(50, 1050);
      if (comm.mesh.rank() == 0) before = first, after = last;
    });
    // The bound is far below one expert per move, and above the difference between the ranks'
    // loads.
    EXPECT_LT(after, before + (size_t{1} << 20));
  }
}

}  // namespace
}  // namespace switchyard
