// The outputs of an Engine with jump-forward decoding equal its outputs without.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "engine/machine.h"
#include "engine/test_engine.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

// A vocabulary of single bytes and pieces of JSON of a few lengths, so that a text has many
// tokenizations. The model's stop tokens keep their ids.
GrammarVocabulary VocabularyOf(const ModelConfig& model) {
  static const std::string kText =
      R"({"name": "", "kind": "green", "count": 12, "tags": [true, false],)";
  GrammarVocabulary vocabulary{.tokens = std::vector<std::string>(model.vocab_size),
                               .stop_ids = model.eos_token_ids};
  if (vocabulary.stop_ids.empty()) vocabulary.stop_ids = {0};
  for (int64_t id = 0; id < model.vocab_size; ++id) {
    const auto at = static_cast<size_t>(Below(id, 1, static_cast<int32_t>(kText.size()) - 6));
    vocabulary.tokens[id] =
        id < 256 ? std::string(1, static_cast<char>(id)) : kText.substr(at, 2 + Below(id, 2, 5));
  }
  for (const int32_t id : vocabulary.stop_ids) vocabulary.tokens[id] = "";
  return vocabulary;
}

std::vector<GrammarSource> Sources() {
  const auto schema = [](const char* text, JsonSpace space) {
    return JsonSchemaGrammar(nlohmann::ordered_json::parse(text), space);
  };
  const char* const record =
      R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "kind":
          {"enum": ["red", "green", "great"]}, "count": {"type": "integer", "minimum": 0, "maximum":
          40}, "flag": {"const": "always the same text"}}, "required": ["name", "kind", "count",
          "flag"], "additionalProperties": false})";
  return {schema(record, JsonSpace::kNone), schema(record, JsonSpace::kPython),
          schema(record, JsonSpace::kAny),
          schema(R"({"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "object",
              "properties": {"green": {"type": "boolean"}}, "required": ["green"],
              "additionalProperties": false}})",
                 JsonSpace::kPython),
          RegexGrammar("(name|count){2,9}: (true|false|12)"),
          ChoiceGrammar({"a long text without choice", "another text"}),
          // Free text up to the end text "e", like reasoning, and then a constrained part.
          StructuralTagGrammar(nlohmann::ordered_json::parse(
              R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [{"type":
                  "tag", "begin": "", "content": {"type": "any_text"}, "end": "e"}, {"type":
                  "const_string", "value": "\n<call>the arguments are: "}, {"type": "regex",
                  "pattern": "[a-z]{3,9}</call>"}]}})"))};
}

void Define(Engine& engine) {
  const GrammarVocabulary vocabulary = VocabularyOf(engine.plan().model);
  const TokenTable table(vocabulary);
  engine.Tell(GrammarTokens{vocabulary.Encode()});
  uint64_t id = 0;
  for (const GrammarSource& source : Sources())
    engine.Tell(DefineGrammar{++id, CompileGrammar(source, table)->ToBytes()});
}

// Most requests have a grammar.
EngineRequest Constrained(uint64_t i, int32_t vocab) {
  EngineRequest request = RequestOf(i, vocab);
  request.grammar = i % (Sources().size() + 1);
  request.sampling.max_new_tokens += 20;
  if (request.grammar != 0) request.sampling.stop_token_ids.clear();
  return request;
}

struct Case {
  const char* fixture;
  MeshShape mesh;
  const char* backend = "none";
  const char* mode = "auto";
  const char* algorithm = "";
};

class JumpForwardEngine : public ::testing::TestWithParam<Case> {};

TEST_P(JumpForwardEngine, GivesTheOutputsWithoutIt) {
  const Case& c = GetParam();
  constexpr uint64_t kRequests = 28;
  EngineConfig config = ConfigOf(c.fixture, c.mesh);
  config.moe.a2a_backend = c.backend;
  config.moe.deepep_mode = c.mode;
  config.moe.max_dispatch_tokens_per_rank = 8;
  config.disable_jump_forward = true;
  Outputs want;
  {
    Engine plain(config);
    Define(plain);
    want = RunAll(plain, kRequests, Constrained);
    EXPECT_EQ(Total(plain.Stats()).forced_steps, 0);
  }
  config.disable_jump_forward = false;
  config.speculative.algorithm = c.algorithm;
  if (*c.algorithm) config.speculative.num_steps = "3";  // "auto" depends on measured times
  Engine engine(config);
  Define(engine);
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
  const EngineStats stats = Total(engine.Stats());
  EXPECT_GT(stats.accepted_forced_tokens, 50);  // each accepted draft saves a step
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
