#include "server/front/rank_spec.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

// The decoded value does not depend on the CPU that decodes it.
TEST(RankSpec, RowsAreRoundedAsTheLeaderSays) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/qwen3_moe";
  config.max_total_tokens = 1000;
  EnginePlan plan = MakePlan(config);
  for (const bool rounded : {true, false}) {
    plan.model.quantization.bfloat16_rows = rounded;
    const RankJob job = DecodeRankSpec(EncodeRankSpec(config, plan));
    EXPECT_EQ(job.plan.model.quantization.bfloat16_rows, rounded);
    EXPECT_EQ(job.plan.num_pages, plan.num_pages);
    EXPECT_EQ(job.plan.symmetric_bytes_per_rank, plan.symmetric_bytes_per_rank);
  }
}

TEST(RankSpec, RanksHaveTheDraftModel) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/deepseek_v3";
  config.max_total_tokens = 1000;
  config.device = "cpu";
  config.speculative = {.algorithm = "NEXTN", .num_steps = "3"};
  const EnginePlan plan = MakePlan(config);
  const RankJob job = DecodeRankSpec(EncodeRankSpec(config, plan));
  ASSERT_TRUE(job.plan.draft);
  EXPECT_TRUE(job.plan.draft->is_mtp);
  EXPECT_EQ(job.plan.draft->first_layer, 3);
  EXPECT_EQ(job.plan.drafts.most, 3);
  EXPECT_FALSE(job.plan.drafts.adapts);
  EXPECT_EQ(job.plan.max_batch_tokens, plan.max_batch_tokens);
}

TEST(RankSpec, DraftsDoNotAdaptWithPipelineStages) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/deepseek_v3";
  config.max_total_tokens = 1000;
  config.device = "cpu";
  config.speculative.algorithm = "NGRAM";
  for (const int stages : {1, 2}) {
    config.mesh.pp = stages;
    const EnginePlan plan = MakePlan(config);
    EXPECT_EQ(plan.drafts.adapts, stages == 1);
    EXPECT_EQ(DecodeRankSpec(EncodeRankSpec(config, plan)).plan.drafts.adapts, stages == 1);
  }
}

}  // namespace
}  // namespace switchyard
