#include "engine/kept_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "core/error.h"
#include "core/format.h"
#include "engine/active_layout.h"
#include "engine/kept_weights.h"
#include "engine/speculative/draft_model.h"
#include "engine/test_engine.h"
#include "quant/weight_view.h"

namespace switchyard {
namespace {

constexpr int kRanks = 4;
const KeptModel::Check kNoCheck = [] {};

EngineConfig ConfigOfRanks(const std::string& fixture, bool moves) {
  EngineConfig config =
      ConfigOf(fixture, {.tp = kRanks, .ep = kRanks, .dp = kRanks, .dense_tp = 1});
  config.moe.a2a_backend = "deepep";
  config.elastic_ep_backend = "mooncake";
  config.eplb.enable = moves;
  return config;
}

// A random placement with `redundant` replicas, as --init-expert-location.
std::string RandomLocation(const EnginePlan& plan, int redundant, std::mt19937& random) {
  std::vector<std::string> rows;
  for (int64_t layer = 0; layer < plan.model.num_layers(); ++layer) {
    std::vector<int> ids;
    const int experts = plan.model.moe->router.num_experts;
    for (int place = 0; place < experts + redundant; ++place) ids.push_back(place % experts);
    std::ranges::shuffle(ids, random);
    rows.push_back(fmt::format("[{}]", Joined(ids, ",")));
  }
  return fmt::format("{{\"physical_to_logical_map\":[{}]}}", Joined(rows, ","));
}

std::vector<float> ValuesOf(const kernels::ExpertWeights& expert) {
  std::vector<float> all;
  for (const WeightView& w : {expert.gate, expert.up, expert.down}) {
    std::vector<float> row(static_cast<size_t>(w.k));
    for (int64_t i = 0; i < w.n; ++i) {
      DequantizeRow(w, i, 0, w.k, row.data());
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  for (const auto& [bias, n] :
       {std::pair(expert.gate_bias, expert.gate.n), std::pair(expert.up_bias, expert.up.n),
        std::pair(expert.down_bias, expert.down.n)})
    if (bias) all.insert(all.end(), bias, bias + n);
  return all;
}

// The weights equal those that the rank would load in this layout.
void ExpectLoaded(const ModelWeights& weights, const ModelShard& shard) {
  const ModelWeights want = LoadWeights(shard.dir, shard.config, shard.mesh, shard.load);
  ASSERT_EQ(weights.layers.size(), want.layers.size());
  for (size_t layer = 0; layer < want.layers.size(); ++layer) {
    const auto& experts = weights.layers[layer].moe.experts;
    ASSERT_EQ(experts.size(), want.layers[layer].moe.experts.size());
    for (size_t i = 0; i < experts.size(); ++i)
      EXPECT_EQ(ValuesOf(experts[i]), ValuesOf(want.layers[layer].moe.experts[i]))
          << "layer " << layer << " expert " << i;
  }
}

// The kept model gives the experts of any layout, of all ranks or of some, whichever it had before.
TEST(KeptModelTest, HasTheExpertsOfEachEpoch) {
  std::mt19937 random(7);
  for (const char* fixture : {"qwen3_moe", "gpt_oss"}) {  // experts of gpt_oss have biases
    for (const bool moves : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, moves {}", fixture, moves));
      const EngineConfig config = ConfigOfRanks(fixture, moves);
      const EnginePlan plan = MakePlan(config);
      const int rank = 2;
      KeptModel kept;
      kept.Load(TargetShard(config, plan, rank));
      EXPECT_TRUE(kept.has_weights());
      for (const std::vector<int>& active :
           {std::vector<int>{2}, {0, 2}, {0, 1, 2, 3}, {1, 2, 3}}) {
        if (std::ssize(active) == kRanks) {
          const ModelShard shard = TargetShard(config, plan, rank);
          ExpectLoaded(*kept.Weights(shard, kNoCheck), shard);
          continue;
        }
        const ActiveLayout layout = LayoutOfActive(config, plan, active);
        const auto index = static_cast<int>(std::ranges::find(active, rank) - active.begin());
        const ModelShard shard = TargetShard(layout.config, layout.plan, index);
        ExpectLoaded(*kept.WeightsOfActive(shard, active, kNoCheck), shard);
      }
      if (!moves) continue;
      for (const int redundant : {0, 4}) {
        EngineConfig moved = config;
        moved.moe.num_redundant_experts = redundant;
        moved.moe.init_expert_location = RandomLocation(plan, redundant, random);
        const ModelShard shard = TargetShard(moved, plan, rank);
        ExpectLoaded(*kept.Weights(shard, kNoCheck), shard);
      }
    }
  }
}

TEST(KeptModelTest, HasTheExpertsOfTheDraftModel) {
  EngineConfig config = ConfigOfRanks("deepseek_v3", /*moves=*/true);
  config.speculative.algorithm = "NEXTN";
  const EnginePlan plan = MakePlan(config);
  KeptModel kept;
  kept.Load(DraftShard(config, plan, 2));
  for (const std::vector<int>& active : {std::vector<int>{2}, {0, 2, 3}}) {
    const ActiveLayout layout = LayoutOfActive(config, plan, active);
    const ModelShard shard =
        DraftShard(layout.config, layout.plan, static_cast<int>(active.size() > 1));
    ExpectLoaded(*kept.WeightsOfActive(shard, active, kNoCheck), shard);
  }
  const ModelShard whole = DraftShard(config, plan, 2);
  ExpectLoaded(*kept.Weights(whole, kNoCheck), whole);
}

// An abort while experts are loaded leaves a state from which the next epoch can begin.
TEST(KeptModelTest, AnAbortedLoadIsContinued) {
  const EngineConfig config = ConfigOfRanks("qwen3_moe", /*moves=*/true);
  const EnginePlan plan = MakePlan(config);
  KeptModel kept;
  kept.Load(TargetShard(config, plan, 1));
  const std::vector<int> active{1};
  const ActiveLayout layout = LayoutOfActive(config, plan, active);
  const ModelShard alone = TargetShard(layout.config, layout.plan, 0);
  int loads = 0;
  const KeptModel::Check aborts = [&] {
    if (++loads == 3) throw Error(ErrorKind::kPeer, "aborted");
  };
  EXPECT_THROW(kept.WeightsOfActive(alone, active, aborts), Error);
  EXPECT_TRUE(kept.has_weights());
  const ModelShard whole = TargetShard(config, plan, 1);
  ExpectLoaded(*kept.Weights(whole, kNoCheck), whole);
  ExpectLoaded(*kept.WeightsOfActive(alone, active, kNoCheck), alone);
}

// A process that was a spare has the weights of the rank whose place it takes, target and draft.
TEST(KeptWeightsTest, ASpareHasTheWeightsOfItsRank) {
  for (const bool moves : {false, true}) {
    EngineConfig config = ConfigOfRanks("deepseek_v3", moves);
    config.speculative.algorithm = "NEXTN";
    const EnginePlan plan = MakePlan(config);
    const auto arena = SharedArena::Create(kRanks, size_t{1} << 20);
    KeptWeights kept;
    int steps = 0;
    kept.LoadCommon(config, plan, [&] { ++steps; });
    EXPECT_GT(steps, 0);
    EXPECT_TRUE(kept.has_common());
    EXPECT_FALSE(kept.model.has_weights());
    kept.LoadAbsent(config, plan, 3, *arena);
    EXPECT_FALSE(kept.has_common());
    const ModelShard target = TargetShard(config, plan, 3), draft = DraftShard(config, plan, 3);
    ExpectLoaded(*kept.model.Weights(target, kNoCheck), target);
    ExpectLoaded(*kept.draft.Weights(draft, kNoCheck), draft);
  }
}

// A load without progress is killed, so each load counts its steps.
TEST(KeptWeightsTest, CountsTheStepsOfEachLoad) {
  EngineConfig config = ConfigOfRanks("deepseek_v3", /*moves=*/false);
  config.speculative.algorithm = "NEXTN";
  const EnginePlan plan = MakePlan(config);
  const auto arena = SharedArena::Create(kRanks, size_t{1} << 20);
  KeptWeights kept;
  kept.LoadDraft(config, plan, 2, *arena);
  EXPECT_TRUE(kept.draft.has_weights());
  EXPECT_FALSE(kept.model.has_weights());
  const uint64_t steps = arena->load_steps(2);
  EXPECT_GT(steps, 0u);
  kept.LoadDraft(config, plan, 2, *arena);
  EXPECT_EQ(arena->load_steps(2), steps);
  kept.LoadAbsent(config, plan, 2, *arena);
  EXPECT_TRUE(kept.model.has_weights());
  EXPECT_GT(arena->load_steps(2), steps);
  EXPECT_EQ(arena->load_steps(1), 0u);
}

}  // namespace
}  // namespace switchyard
