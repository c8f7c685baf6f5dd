// The outputs of an Engine with jump-forward decoding equal its outputs without.
#include <gmock/gmock.h>

#include <ostream>

#include "core/format.h"
#include "core/test_effort.h"
#include "engine/machine.h"
#include "engine/test_engine.h"
#include "engine/test_grammars.h"

namespace switchyard {
namespace {

struct Case {
  const char* fixture;
  MeshShape mesh;
  const char* backend = "none";
  const char* mode = "auto";
  const char* algorithm = "";

  // The name of a test contains this text.
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << fmt::format("{} tp {} ep {} dp {} {} {} {}", c.fixture, c.mesh.tp, c.mesh.ep, c.mesh.dp,
                        c.backend, c.mode, c.algorithm);
  }
};

class JumpForwardEngine : public ::testing::TestWithParam<Case> {};

TEST_P(JumpForwardEngine, GivesTheOutputsWithoutIt) {
  const Case& c = GetParam();
  constexpr uint64_t kRequests = FewerIfSanitized(28);
  EngineConfig config = ConfigOf(c.fixture, c.mesh);
  config.moe.a2a_backend = c.backend;
  config.moe.deepep_mode = c.mode;
  config.moe.max_dispatch_tokens_per_rank = 8;
  config.disable_jump_forward = true;
  Outputs want;
  {
    Engine plain(config);
    DefineGrammars(plain);
    want = RunAll(plain, kRequests, Constrained);
    EXPECT_EQ(Total(plain.Stats()).forced_steps, 0);
  }
  config.disable_jump_forward = false;
  config.speculative.algorithm = c.algorithm;
  if (*c.algorithm) config.speculative.num_steps = "3";  // "auto" depends on measured times
  Engine engine(config);
  DefineGrammars(engine);
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
  const EngineStats stats = Total(engine.Stats());
  // Each accepted draft saves a step.
  EXPECT_GT(stats.accepted_forced_tokens, 2 * int64_t{kRequests} - 6);
  EXPECT_LE(stats.accepted_forced_tokens, stats.forced_tokens);
  EXPECT_EQ(stats.drafted_tokens > 0, *c.algorithm != '\0');
  // In this second run, the prefix cache holds the prompts.
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
}

constexpr MeshShape kDp2{.tp = 2, .ep = 2, .dp = 2};

INSTANTIATE_TEST_SUITE_P(
    Layouts, JumpForwardEngine,
    ::testing::Values(Case{"yardling", {1, 1}}, Case{"qwen3_moe", {2, 2}, "deepep"},
                      Case{"qwen3_moe", {2, 2}, "deepep", "low_latency"},
                      Case{"deepseek_v3", kDp2, "deepep"}, Case{"deepseek_v3", kDp2, "none"},
                      Case{"deepseek_v3", kDp2, "flashinfer"},
                      Case{"deepseek_v3", {2, 2}, "mooncake"}, Case{"deepseek_v3", {2, 2}, "fused"},
                      Case{"yardling", {1, 1}, "none", "auto", "NGRAM"},
                      Case{"yardling", {1, 1}, "none", "auto", "NEXTN"},
                      Case{"deepseek_v3", kDp2, "deepep", "auto", "NEXTN"}));

TEST(JumpForwardPlan, IsOffOnRequestAndForPooledModels) {
  EngineConfig config = ConfigOf("qwen3_moe");
  EXPECT_EQ(MakePlan(config).max_forced, kMostForcedDrafts);
  config.pooling.is_embedding = true;
  EXPECT_EQ(MakePlan(config).max_forced, 0);
  config.pooling.is_embedding = false;
  config.disable_jump_forward = true;
  EXPECT_EQ(MakePlan(config).max_forced, 0);
}

TEST(JumpForwardPlan, IsOffOnGpus) {
  EngineConfig config = ConfigOf("qwen3_moe");
  config.device = "cuda";
  const Machine gpu{.cuda = true,
                    .memory = {.total = int64_t{80} << 30, .available = int64_t{80} << 30},
                    .cpus = 4};
  EXPECT_EQ(MakePlanOn(gpu, ReadModelConfig(config), config, 1).max_forced, 0);
}

// Drafts use the buffer rows of prompts, so buffers have the same sizes with and without
// jump-forward decoding.
TEST(JumpForwardPlan, NeedsNoMemory) {
  EngineConfig config = ConfigOf("qwen3_moe");
  const EnginePlan with = MakePlan(config);
  config.disable_jump_forward = true;
  const EnginePlan without = MakePlan(config);
  EXPECT_EQ(with.max_batch_tokens, without.max_batch_tokens);
  EXPECT_EQ(with.symmetric_bytes_per_rank, without.symmetric_bytes_per_rank);
}

}  // namespace
}  // namespace switchyard
