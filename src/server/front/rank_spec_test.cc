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

}  // namespace
}  // namespace switchyard
