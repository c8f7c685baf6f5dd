// Ranks with experts only, and ranks with unequal numbers of experts, have the bits of one rank.
#include <gmock/gmock.h>

#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/complete_options.h"
#include "model/test_layouts.h"
#include "model/weights.h"

namespace switchyard {
namespace {

using ::testing::UnorderedElementsAre;

// Texts of the ranks with attention; the other groups have none.
std::vector<Group> GroupsOf(const Case& c) {
  std::vector<Group> groups = ManyTexts(c.dp);
  for (int g = c.dp - c.expert_ranks; g < c.dp; ++g) groups[g].clear();
  return groups;
}

// The outputs of one rank that runs a text alone.
const Outcome& Alone(const std::string& fixture, const Text& text) {
  static std::map<std::pair<std::string, std::vector<int32_t>>, Outcome> known;
  Outcome& outcome = known[{fixture, text.tokens}];
  if (outcome.logits.empty())
    outcome = Run({.fixture = fixture}, {{{.tokens = text.tokens}}})[0][0];
  return outcome;
}

void ExpectSameBits(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  const std::vector<Group> groups = GroupsOf(c);
  const auto outcomes = Run(c, groups);
  for (size_t g = 0; g < groups.size(); ++g)
    for (size_t i = 0; i < groups[g].size(); ++i)
      EXPECT_EQ(outcomes[g][i], Alone(c.fixture, groups[g][i])) << "group " << g << " text " << i;
}

Case CaseOf(const std::string& fixture, int ranks, int expert_ranks, std::vector<int32_t> slots) {
  return {.fixture = fixture,
          .tp = ranks,
          .ep = ranks,
          .backend = "deepep",
          .dp = ranks,
          .dense_tp = 1,
          .expert_ranks = expert_ranks,
          .expert_slots = std::move(slots)};
}

int ExpertsOf(const std::string& fixture) {
  return LoadModelConfig(Fixture(fixture)).moe->router.num_experts;
}

TEST(ExpertRanks, EveryFixtureHasTheBitsOfOneRank) {
  for (const char* fixture : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2",
                              "deepseek_v3", "deepseek_v3_fp8", "gpt_oss", "glm4_moe"}) {
    const int experts = ExpertsOf(fixture);
    ExpectSameBits(CaseOf(fixture, 2, 1, {2, experts - 2}));
  }
}

TEST(ExpertRanks, EveryExchangeHasTheBitsOfOneRank) {
  for (const auto& [backend, mode] : RowBackends()) {
    Case c = CaseOf("deepseek_v3", 3, 1, {3, 4, 9});
    c.backend = backend;
    c.mode = mode;
    ExpectSameBits(c);
    c.expert_ranks = 2;
    c.expert_slots.clear();
    ExpectSameBits(c);
  }
}

// Overlapped schedules, batches in several rounds, and combine in parts.
TEST(ExpertRanks, SchedulesKeepTheBits) {
  Case c = CaseOf("deepseek_v3", 3, 2, {1, 5, 10});
  c.round_tokens = 3;
  ExpectSameBits(c);
  c.two_batches = true;
  ExpectSameBits(c);
  c.two_batches = false;
  c.round_tokens = 8192;
  c.single_batch = true;
  ExpectSameBits(c);
}

// Experts in another order, and replicas of some on both ranks.
TEST(ExpertRanks, RandomPlacementsKeepTheBits) {
  const int experts = ExpertsOf("qwen3_moe"), redundant = 3;
  std::string row;
  for (int i = 0; i < experts + redundant; ++i)
    row += (i == 0 ? "" : ", ") + std::to_string((5 * i + 3) % experts);
  const std::string location = "{\"physical_to_logical_map\": [[" + row + "]]}";
  for (const int fast : {1, 7, 12}) {
    Case c = CaseOf("qwen3_moe", 2, 1, {fast, experts + redundant - fast});
    c.redundant = redundant;
    c.location = location;
    ExpectSameBits(c);
  }
}

// With `none`, sums of ranks are added, so only rounding errors are equal.
TEST(ExpertRanks, CollectivesAgreeWithinRounding) {
  Case c = CaseOf("qwen3_moe", 2, 1, {4, 12});
  c.backend = "none";
  const std::vector<Group> groups = GroupsOf(c);
  const auto outcomes = switchyard::Run(c, groups);
  for (size_t i = 0; i < groups[0].size(); ++i) {
    const Outcome &got = outcomes[0][i], &want = Alone(c.fixture, groups[0][i]);
    ASSERT_EQ(got.logits.size(), want.logits.size());
    for (size_t n = 0; n < want.logits.size(); ++n)
      ASSERT_NEAR(got.logits[n], want.logits[n], 5e-4) << "text " << i;
    EXPECT_EQ(got.routed_experts, want.routed_experts);
  }
}

// With rank 0 twenty times as fast, the five slots of rank 0 get the experts with the most rows.
TEST(ExpertRanks, InitialPlansFillTheSlotsByCosts) {
  ModelConfig config = LoadModelConfig(Fixture("qwen3_moe"));
  config.moe->router.num_experts = 8;
  std::string layers;
  for (int64_t i = 0; i < config.num_layers(); ++i)
    layers += std::string(i > 0 ? "," : "") + "[3, 90, 1, 80, 70, 60, 2, 50]";
  ModelOptions options{.moe = {.init_expert_location = R"({"logical_count": [)" + layers + "]}"},
                       .eplb_algorithm = "yard",
                       .rank_costs = {{1, 0}, {20, 0}}};
  const MeshShape mesh{
      .tp = 2, .ep = 2, .dp = 2, .dense_tp = 1, .expert_ranks = 1, .expert_slots = {5, 3}};
  const ModelOptions complete = CompleteOptions(config, options, mesh);
  ASSERT_EQ(std::ssize(complete.load.placements), config.num_layers());
  for (const ExpertPlacement& placement : complete.load.placements) {
    const auto experts = placement.physical_to_logical();
    ASSERT_EQ(experts.size(), 8u);
    EXPECT_THAT(experts.first(5), UnorderedElementsAre(1, 3, 4, 5, 7));
    EXPECT_THAT(experts.last(3), UnorderedElementsAre(0, 2, 6));
  }
}

TEST(ExpertRanks, TheyLoadRoutedExpertsOnly) {
  const ModelConfig config = LoadModelConfig(Fixture("deepseek_v3"));
  const MeshShape shape{
      .tp = 2, .ep = 2, .dp = 2, .dense_tp = 1, .expert_ranks = 1, .expert_slots = {6, 10}};
  const LoadOptions options{.replicated_shared_expert = true};
  const ModelWeights weights = LoadWeights(Fixture("deepseek_v3"), config, Mesh(shape, 1), options);
  EXPECT_FALSE(weights.embedding.defined());
  EXPECT_FALSE(weights.head.defined());
  EXPECT_FALSE(weights.final_norm.defined());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    EXPECT_FALSE(layer.input_norm.defined());
    EXPECT_FALSE(layer.latent.o.w.defined());
    EXPECT_FALSE(layer.dense.gate.defined());
    EXPECT_FALSE(layer.moe.router.w.defined());
    EXPECT_FALSE(layer.moe.has_shared);
    EXPECT_EQ(layer.moe.experts.size(), config.layers[i].moe ? 10u : 0u);
  }
  const ModelWeights all = LoadWeights(Fixture("deepseek_v3"), config, Mesh(), options);
  const ModelWeights first = LoadWeights(Fixture("deepseek_v3"), config, Mesh(shape, 0), options);
  EXPECT_EQ(first.bytes_mapped + weights.bytes_mapped, all.bytes_mapped);
}

}  // namespace
}  // namespace switchyard
