#include "engine/active_layout.h"

#include <gmock/gmock.h>

#include <functional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/machine.h"
#include "engine/speculative/draft_model.h"
#include "model/complete_options.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

EngineConfig WholeRanks(int ranks) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/qwen3_moe";
  config.max_total_tokens = 4000;
  config.max_running_requests = 64;
  config.device = "cpu";
  config.mesh = {.tp = ranks, .ep = ranks, .dp = ranks, .dense_tp = 1};
  config.moe.a2a_backend = "deepep";
  config.elastic_ep_backend = "mooncake";
  return config;
}

TEST(ActiveLayoutTest, IsASmallerLayoutWithAllExperts) {
  for (const int redundant : {0, 4}) {
    EngineConfig config = WholeRanks(4);
    config.moe.num_redundant_experts = redundant;
    const EnginePlan plan = MakePlan(config);
    const std::vector<int> active{0, 2, 3};
    const ActiveLayout layout = LayoutOfActive(config, plan, active);
    EXPECT_EQ(layout.config.mesh.tp, 3);
    EXPECT_EQ(layout.config.mesh.ep, 3);
    EXPECT_EQ(layout.config.mesh.dp, 3);
    EXPECT_EQ(layout.plan.num_pages, plan.num_pages);
    EXPECT_GE(layout.plan.max_running_requests * 3, plan.max_running_requests * 4);
    EXPECT_EQ(layout.plan.max_batch_tokens - layout.plan.max_running_requests,
              plan.max_batch_tokens - plan.max_running_requests);
    // The model reads the placement from the configuration.
    const ModelOptions options = CompleteOptions(
        plan.model, MakeModelOptions(layout.config, layout.plan), layout.config.mesh);
    const int experts = plan.model.moe->router.num_experts;
    for (const ExpertPlacement& placement : options.load.placements) {
      EXPECT_EQ(placement.num_logical(), experts);
      EXPECT_EQ(placement.num_physical(), experts + layout.config.moe.num_redundant_experts);
      EXPECT_EQ(placement.num_physical() % 3, 0);
    }
    EXPECT_TRUE(CanServe(config, plan, active));
    EXPECT_LE(SymmetricBytesWithoutARank(config, plan), plan.symmetric_bytes_per_rank);
  }
}

// Experts move in the smaller layout too, unless one rank is left or the planner refuses the
// layout.
TEST(ActiveLayoutTest, ExpertsMoveIfSeveralRanksAreLeft) {
  EngineConfig config = WholeRanks(4);
  config.eplb.enable = true;
  const EnginePlan plan = MakePlan(config);
  for (const auto& [active, moves] :
       {std::pair(std::vector<int>{0, 1, 3}, true), {std::vector<int>{2}, false}}) {
    const ActiveLayout layout = LayoutOfActive(config, plan, active);
    EXPECT_EQ(layout.config.eplb.enable, moves);
    EXPECT_EQ(MakeModelOptions(layout.config, layout.plan).movable_experts, moves);
  }
  EXPECT_TRUE(CanServe(config, plan, {0, 1, 3}));
}

// The draft model has experts of its own.
TEST(ActiveLayoutTest, TheDraftModelHasAllItsExperts) {
  EngineConfig config = WholeRanks(4);
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/deepseek_v3";
  config.speculative.algorithm = "NEXTN";
  const EnginePlan plan = MakePlan(config);
  const std::vector<int> active{1, 2, 3};
  const ActiveLayout layout = LayoutOfActive(config, plan, active);
  const ModelOptions options = CompleteOptions(
      *plan.draft,
      MakeDraftOptions(MakeModelOptions(layout.config, layout.plan), layout.plan.draft_experts),
      layout.config.mesh);
  const int64_t rows = plan.drafts.rows();  // of a decoding request
  EXPECT_GT(rows, 1);
  EXPECT_EQ(layout.plan.max_batch_tokens - rows * layout.plan.max_running_requests,
            plan.max_batch_tokens - rows * plan.max_running_requests);
  const int experts = plan.draft->moe->router.num_experts;
  ASSERT_FALSE(options.load.placements.empty());
  for (const ExpertPlacement& placement : options.load.placements) {
    EXPECT_EQ(placement.num_logical(), experts);
    EXPECT_EQ(placement.num_physical(), experts + layout.plan.draft_experts.redundant);
    EXPECT_EQ(placement.num_physical() % 3, 0);
  }
  EXPECT_TRUE(CanServe(config, plan, active));
}

TEST(ActiveLayoutTest, AnExplicitListOfCpusKeepsThoseOfTheActiveRanks) {
  EngineConfig config = WholeRanks(2);
  config.cpu_bind = "0|1";
  const ActiveLayout layout = LayoutOfActive(config, MakePlan(config), std::vector<int>{1});
  EXPECT_EQ(layout.config.cpu_bind, "1");
}

TEST(ActiveLayoutTest, TheFlagNamesWhyRanksServeOnlyTogether) {
  const std::pair<std::function<void(EngineConfig&)>, const char*> cases[] = {
      {[](EngineConfig& c) { c.mesh.dense_tp = 0; }, "--moe-dense-tp-size 1"},
      {[](EngineConfig& c) { c.mesh.dp = 2; }, "whole attention"},
      {[](EngineConfig& c) { c.mesh.tp = c.mesh.ep = c.mesh.dp = 1; }, "at least 2"},
      {[](EngineConfig& c) { c.moe.a2a_backend = "none"; }, "--moe-a2a-backend"},
      {[](EngineConfig& c) { c.moe.combine_rows = "rank"; }, "--moe-combine-rows slot"},
      {[](EngineConfig& c) { c.elastic_ep_backend = "nixl"; }, "want none or mooncake"}};
  for (const auto& [change, expected] : cases) {
    EngineConfig config = WholeRanks(4);
    change(config);
    try {
      MakePlan(config);
      ADD_FAILURE() << expected;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--elastic-ep-backend"));
      EXPECT_THAT(error.what(), HasSubstr(expected));
    }
  }
}

}  // namespace
}  // namespace switchyard
