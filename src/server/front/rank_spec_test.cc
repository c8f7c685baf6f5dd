#include "server/front/rank_spec.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "engine/speculative/token_map.h"

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

// Ranks on GPUs and the ranks with experts on CPUs beside them keep weights as the parent planned.
TEST(RankSpec, WeightsAreHeldAsThePlanSays) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/qwen3_moe";
  config.max_total_tokens = 1000;
  config.mesh = {.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1, .expert_ranks = 1};
  EnginePlan plan;
  plan.cuda = true;
  plan.host_experts = true;
  for (const bool on : {true, false}) {
    plan.packs_experts = plan.host_int8_rows = on;
    plan.host_bfloat16_rows = !on;
    config.device = "cuda,cpu";
    const RankJob job = DecodeRankSpec(EncodeRankSpec(config, plan));
    EXPECT_EQ(job.plan.packs_experts, on);
    const QuantizationConfig gpu = job.plan.ModelOf(config.mesh, 0).quantization,
                             cpu = job.plan.ModelOf(config.mesh, 1).quantization;
    EXPECT_EQ(cpu.int8_group_rows, on);
    EXPECT_EQ(cpu.fp8_bfloat16_rows, !on);
    EXPECT_FALSE(gpu.int8_group_rows || gpu.fp8_bfloat16_rows);
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

TEST(RankSpec, RanksHaveTheTokensOfTheParent) {
  const TemporaryDirectory dir;
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/deepseek_v3";
  config.max_total_tokens = 1000;
  config.device = "cpu";
  config.speculative = {.algorithm = "NEXTN", .token_map = (dir.path() / "map.json").string()};
  WriteTokenMap(config.speculative.token_map, std::vector<int32_t>{9, 3, 200});
  const std::string spec = EncodeRankSpec(config, MakePlan(config));
  const RankJob job = DecodeRankSpec(spec);
  ASSERT_TRUE(job.plan.draft && job.plan.draft->reduced_head);
  EXPECT_EQ(job.plan.draft->reduced_head->tokens, (std::vector<int32_t>{3, 9, 200}));
  EXPECT_EQ(DecodeRankSpec(spec, {}, {}, "").plan.draft->reduced_head, nullptr);

  WriteTokenMap(dir.path() / "other.txt", std::vector<int32_t>{200, 9, 3});
  EXPECT_EQ(
      DecodeRankSpec(spec, {}, {}, (dir.path() / "other.txt").string()).plan.draft->head_rows(), 3);
  WriteTokenMap(config.speculative.token_map, std::vector<int32_t>{9, 3, 201});
  try {
    DecodeRankSpec(spec);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--speculative-token-map"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the tokens differ"));
  }
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
