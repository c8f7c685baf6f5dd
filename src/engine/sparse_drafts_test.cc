// Drafts for models with sparse attention (DeepSeek-V3.2, GLM-5), from an MTP layer with an
// indexer. Their outputs equal those without drafts. Most contexts have more keys than an indexer
// selects.
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <string>

#include "core/format.h"
#include "core/test_effort.h"
#include "engine/test_engine.h"
#include "model/test_mtp_layer.h"

namespace switchyard {
namespace {

struct SparseCase {
  const char* fixture;
  testing::MtpLayer layer;
  MeshShape mesh = {1, 1};
  const char* backend = "none";
  const char* mode = "auto";
  int32_t topk = 1, rows = 0;  // trees: their width, and the rows of a verification

  // The name of a test contains this text.
  friend void PrintTo(const SparseCase& c, std::ostream* out) {
    *out << fmt::format("{} {} tp {} ep {} dp {} {} {} topk {}", c.fixture, c.layer.settings.dump(),
                        c.mesh.tp, c.mesh.ep, c.mesh.dp, c.backend, c.mode, c.topk);
  }
};

class SparseDrafts : public ::testing::TestWithParam<SparseCase> {};

TEST_P(SparseDrafts, GiveTheOutputsWithoutDrafts) {
  const SparseCase& c = GetParam();
  const testing::TempDir dir;
  testing::WriteMtpLayer(Fixture(std::string("../families/") + c.fixture), c.layer, dir.path());
  EngineConfig config = ConfigOf(c.fixture, c.mesh);
  config.model_path = dir.path();
  config.moe.a2a_backend = c.backend;
  config.moe.deepep_mode = c.mode;
  config.moe.max_dispatch_tokens_per_rank = 8;
  constexpr uint64_t kRequests = FewerIfSanitized(8);
  Outputs want;
  {
    Engine plain(config);
    want = RunAll(plain, kRequests);
  }
  config.speculative = {
      .algorithm = "NEXTN", .num_steps = "3", .eagle_topk = c.topk, .num_draft_tokens = c.rows};
  Engine engine(config);
  EXPECT_EQ(engine.plan().draft->attention.drafts_share_index, !c.layer.settings.empty());
  ExpectEqual(RunAll(engine, kRequests), want);
  EXPECT_GT(Total(engine.Stats()).drafted_tokens, 0);
  ExpectEqual(RunAll(engine, kRequests), want);  // with the prompts in the prefix cache
}

constexpr MeshShape kTwoRanks{.tp = 2, .ep = 2}, kTwoGroups{.tp = 2, .ep = 2, .dp = 2};

const nlohmann::json& SharedIndex() {
  static const nlohmann::json settings = {{"index_share_for_mtp_iteration", true}};
  return settings;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SparseDrafts,
    ::testing::Values(SparseCase{"deepseek_v32", {.from = 2, .own_vocabulary = true}},
                      SparseCase{"deepseek_v32", {.from = 2}, kTwoRanks, "deepep", "normal"},
                      SparseCase{"deepseek_v32", {.from = 1}, {1, 1}, "none", "auto", 3, 9},
                      SparseCase{"glm_moe_dsa", {.from = 2}, kTwoGroups, "deepep"},
                      // The last layer of this checkpoint has no indexer, the MTP layer has one.
                      SparseCase{"glm_moe_dsa_shared", {.from = 2}},
                      SparseCase{"glm_moe_dsa_shared", {.from = 2, .settings = SharedIndex()}},
                      SparseCase{"glm_moe_dsa_shared",
                                 {.from = 2, .settings = SharedIndex()},
                                 kTwoRanks,
                                 "deepep",
                                 "low_latency"},
                      SparseCase{"glm_moe_dsa_shared",
                                 {.from = 2, .settings = SharedIndex()},
                                 {1, 1},
                                 "none",
                                 "auto",
                                 3,
                                 9}));

// Every draft of a copy of the target is correct, with sampling too. So steps verify four rows of a
// sequence, each with its own selected keys.
TEST(SparseDraftsTest, TheTargetAsItsDraftModelIsAlwaysRight) {
  const auto shared = Fixture("../families/glm_moe_dsa_shared");
  const testing::TempDir dir;  // a draft model that shares its index among drafts as MTP layer only
  testing::WriteMtpLayer(shared, {.from = 2, .settings = SharedIndex()}, dir.path());
  for (const std::filesystem::path& path :
       {Fixture("../families/deepseek_v32"), shared, std::filesystem::path(dir.path())}) {
    EngineConfig config = ConfigOf("../families/glm_moe_dsa_shared");
    config.model_path = path;
    config.speculative = {
        .algorithm = "STANDALONE", .num_steps = "3", .draft_model_path = path.string()};
    Engine engine(config);
    const auto vocab = static_cast<int32_t>(engine.plan().model.vocab_size);
    for (uint64_t i = 0; i < 4; ++i) {
      EngineRequest request;
      for (int32_t t = 0; t < 12; ++t) request.input_ids.push_back(1 + Below(i, t, vocab - 1));
      request.sampling = {.max_new_tokens = 41,
                          .temperature = i % 2 == 0 ? 0.0f : 1.0f,
                          .seed = i,
                          .ignore_eos = true};
      EXPECT_EQ(engine.Generate(request).new_tokens.size(), 41u);
    }
    const EngineStats stats = Total(engine.Stats());
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens) << path;
    EXPECT_EQ(stats.accepted_tokens, 4 * 30) << path;  // 10 steps of 3 drafts each
  }
}

}  // namespace
}  // namespace switchyard
