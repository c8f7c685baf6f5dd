// The outputs of an Engine with speculative decoding equal its outputs without.
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "core/error.h"
#include "core/format.h"
#include "core/temporary_directory.h"
#include "core/test_effort.h"
#include "engine/machine.h"
#include "engine/speculative/options.h"
#include "engine/speculative/token_map.h"
#include "engine/test_engine.h"
#include "model/test_eagle.h"
#include "moe/backends.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Case {
  const char* fixture;
  const char* algorithm;
  MeshShape mesh;
  const char* backend = "none";
  const char* mode = "auto";
  const char* draft_backend = "";
  const char* draft_model = "";
  const char* steps = "3";
  bool two_batches = false;
  int32_t topk = 1, rows = 0;  // trees: their width, and the rows of a verification
  int32_t every = 0;           // --speculative-token-map with each n-th token; 0: none

  // The name of a test contains this text.
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << fmt::format("{} {} tp {} ep {} dp {} {} {} {} {} steps {}{} topk {} rows {} map {}",
                        c.fixture, c.algorithm, c.mesh.tp, c.mesh.ep, c.mesh.dp, c.backend, c.mode,
                        c.draft_backend, c.draft_model, c.steps,
                        c.two_batches ? " two batches" : "", c.topk, c.rows, c.every);
  }
};

EngineConfig ConfigWithoutDrafts(const Case& c) {
  EngineConfig config = ConfigOf(c.fixture, c.mesh);
  config.moe.a2a_backend = c.backend;
  config.moe.deepep_mode = c.mode;
  config.moe.max_dispatch_tokens_per_rank = 8;
  config.two_batch_overlap = c.two_batches;
  return config;
}

// Writes the token map of the case, if it has one.
void AddTokenMap(const Case& c, const testing::TempDir& dir, EngineConfig* config) {
  if (c.every == 0) return;
  std::vector<int32_t> tokens;
  for (int32_t id = 0; id < ReadModelConfig(*config).vocab_size; id += c.every)
    tokens.push_back(id);
  config->speculative.token_map = (dir.path() / "tokens.txt").string();
  WriteTokenMap(config->speculative.token_map, tokens);
}

// Checks that outputs with drafts equal `want`, first without and then with the prompts in the
// prefix cache.
void ExpectOutputs(const EngineConfig& config, uint64_t requests, const Outputs& want) {
  Engine engine(config);
  ExpectEqual(RunAll(engine, requests), want);
  const EngineStats stats = Total(engine.Stats());
  EXPECT_GT(stats.drafted_tokens, 0);
  EXPECT_LE(stats.accepted_tokens, stats.drafted_tokens);
  ExpectEqual(RunAll(engine, requests), want);
}

class SpeculativeEngine : public ::testing::TestWithParam<Case> {};

TEST_P(SpeculativeEngine, GivesTheOutputsWithoutDrafts) {
  const Case& c = GetParam();
  EngineConfig config = ConfigWithoutDrafts(c);
  constexpr uint64_t kRequests = FewerIfSanitized(24);
  Outputs want;
  {
    Engine plain(config);
    want = RunAll(plain, kRequests);
  }
  config.speculative.algorithm = c.algorithm;
  config.speculative.num_steps = c.steps;
  config.speculative.eagle_topk = c.topk;
  config.speculative.num_draft_tokens = c.rows;
  config.moe.speculative_a2a_backend = c.draft_backend;
  if (*c.draft_model) config.speculative.draft_model_path = Fixture(c.draft_model);
  const testing::TempDir dir;
  AddTokenMap(c, dir, &config);
  ExpectOutputs(config, kRequests, want);
}

constexpr MeshShape kDp2{.tp = 2, .ep = 2, .dp = 2};

// EAGLE heads with random weights, in a directory apart from the target's checkpoint.
class EagleEngine : public ::testing::TestWithParam<Case> {};

TEST_P(EagleEngine, GivesTheOutputsWithoutDrafts) {
  const Case& c = GetParam();
  EngineConfig config = ConfigWithoutDrafts(c);
  constexpr uint64_t kRequests = FewerIfSanitized(16);
  Outputs want;
  {
    Engine plain(config);
    want = RunAll(plain, kRequests);
  }
  const bool inner_rows = c.algorithm == std::string_view("EAGLE3");
  const ModelConfig target = ReadModelConfig(config);
  testing::EagleHead head{.inner_rows = inner_rows, .bias = !inner_rows};
  if (inner_rows) {
    head.layers = {0, 1, target.num_layers()};
    if (c.every == 0) head.draft_vocab = target.vocab_size / 4;
  } else {
    head.layer = "layers.0.";
  }
  const testing::TempDir dir;
  testing::WriteEagleHead(dir.path(), head, target);
  config.speculative = {.algorithm = c.algorithm,
                        .num_steps = c.steps,
                        .eagle_topk = c.topk,
                        .num_draft_tokens = c.rows,
                        .draft_model_path = dir.path().string()};
  AddTokenMap(c, dir, &config);
  ExpectOutputs(config, kRequests, want);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, EagleEngine,
    ::testing::Values(
        Case{"deepseek_v3", "EAGLE3", {1, 1}}, Case{"deepseek_v3", "EAGLE", {1, 1}},
        Case{"deepseek_v3", "EAGLE3", {2, 2}, "deepep"},
        Case{"deepseek_v3", "eagle", {2, 2}, "deepep", "low_latency"},
        Case{"deepseek_v3", "EAGLE3", {2, 1}}, Case{"deepseek_v3", "EAGLE", kDp2, "none"},
        Case{"deepseek_v3", "EAGLE3", kDp2, "deepep"},
        Case{"deepseek_v3", "EAGLE3", kDp2, "deepep", "auto", "", "", "2", true},
        Case{"deepseek_v3", "EAGLE3", kDp2, "flashinfer"},
        Case{"deepseek_v3", "EAGLE3", {2, 2}, "mooncake"}, Case{"mixtral", "EAGLE3", {1, 1}},
        Case{"qwen3_moe", "EAGLE", {2, 2}, "deepep"}, Case{"gpt_oss", "EAGLE3", {1, 1}},
        Case{"llama", "EAGLE", {2, 1}}, Case{"yardling", "EAGLE3", {1, 1}},
        Case{"yardling", "EAGLE3", {1, 1}, "none", "auto", "", "", "auto"}));

INSTANTIATE_TEST_SUITE_P(
    Layouts, SpeculativeEngine,
    ::testing::Values(
        Case{"deepseek_v3", "NEXTN", {1, 1}}, Case{"deepseek_v3", "nextn", {2, 2}, "deepep"},
        Case{"deepseek_v3", "MTP", {2, 2}, "deepep", "low_latency", "none"},
        Case{"deepseek_v3", "NEXTN", {2, 1}}, Case{"deepseek_v3", "NEXTN", kDp2, "deepep"},
        Case{"deepseek_v3", "NEXTN", kDp2, "none"},
        Case{"deepseek_v3", "NEXTN", kDp2, "flashinfer"},
        Case{"deepseek_v3", "NEXTN", {2, 2}, "mooncake", "auto", "fused"},
        Case{"yardling", "NEXTN", {1, 1}}, Case{"yardling", "NEXTN", kDp2, "deepep"},
        Case{"yardling", "NEXTN", {1, 1}, "none", "auto", "", "", "auto"},
        Case{"yardling", "NGRAM", {1, 1}}, Case{"mixtral", "NGRAM", {2, 2}, "deepep"},
        Case{"deepseek_v3", "STANDALONE", {1, 1}, "none", "auto", "", "qwen2_moe"},
        Case{"deepseek_v3", "STANDALONE", kDp2, "deepep", "auto", "none", "deepseek_v2"},
        Case{"deepseek_v3", "STANDALONE", {1, 1}, "none", "auto", "", "deepseek_v3", "auto"}));

INSTANTIATE_TEST_SUITE_P(
    TokenMaps, EagleEngine,
    ::testing::Values(Case{.fixture = "deepseek_v3", .algorithm = "EAGLE", .every = 2},
                      Case{.fixture = "llama", .algorithm = "EAGLE3", .mesh = {2, 1}, .every = 7}));

INSTANTIATE_TEST_SUITE_P(
    TokenMaps, SpeculativeEngine,
    ::testing::Values(Case{.fixture = "deepseek_v3", .algorithm = "NEXTN", .every = 2},
                      Case{.fixture = "deepseek_v3",
                           .algorithm = "NEXTN",
                           .mesh = kDp2,
                           .backend = "deepep",
                           .every = 300},
                      Case{.fixture = "yardling",
                           .algorithm = "NEXTN",
                           .mesh = {2, 2},
                           .topk = 2,
                           .rows = 6,
                           .every = 5}));

INSTANTIATE_TEST_SUITE_P(
    Trees, EagleEngine,
    ::testing::Values(
        Case{"deepseek_v3", "EAGLE3", {1, 1}, "none", "auto", "", "", "3", false, 3, 9},
        Case{"deepseek_v3", "EAGLE", kDp2, "deepep", "auto", "", "", "3", true, 2, 6},
        Case{"gpt_oss", "EAGLE3", {2, 2}, "deepep", "auto", "", "", "4", false, 4, 20},
        Case{
            "../families/deepseek_v32", "EAGLE3", {1, 1}, "none", "auto", "", "", "3", false, 3, 9},
        Case{"yardling", "EAGLE", {1, 1}, "none", "auto", "", "", "2", false, 4, 8}));

INSTANTIATE_TEST_SUITE_P(
    Trees, SpeculativeEngine,
    ::testing::Values(
        Case{"deepseek_v3", "NEXTN", {1, 1}, "none", "auto", "", "", "3", false, 4, 8},
        Case{"deepseek_v3", "NEXTN", kDp2, "deepep", "low_latency", "", "", "3", false, 2, 9},
        Case{"deepseek_v3", "MTP", {2, 1}, "none", "auto", "", "", "4", false, 4, 24},
        Case{"yardling", "NEXTN", {1, 1}, "none", "auto", "", "", "3", false, 2, 6},
        Case{"yardling", "NEXTN", kDp2, "deepep", "auto", "", "", "2", false, 3, 4},
        Case{"deepseek_v3",
             "STANDALONE",
             {1, 1},
             "none",
             "auto",
             "",
             "deepseek_v3",
             "3",
             false,
             3,
             9},
        Case{"mixtral", "STANDALONE", {2, 2}, "deepep", "auto", "", "gpt_oss", "2", false, 2, 5}));

// Generates from prompts of random tokens.
EngineStats StatsOf(const EngineConfig& config, float temperature) {
  Engine engine(config);
  for (uint64_t i = 0; i < 8; ++i) {
    EngineRequest request;
    const auto vocab = static_cast<int32_t>(engine.plan().model.vocab_size);
    for (int32_t t = 0; t < 12; ++t) request.input_ids.push_back(1 + Below(i, t, vocab - 1));
    request.sampling = {
        .max_new_tokens = 41, .temperature = temperature, .seed = i, .ignore_eos = true};
    EXPECT_EQ(engine.Generate(request).new_tokens.size(), 41u);
  }
  return Total(engine.Stats());
}

// If the draft model is a copy of the target, every draft is correct, with sampling too: both
// models sample with the same random numbers.
TEST(SpeculativeEngineTest, TheTargetAsItsDraftModelIsAlwaysRight) {
  EngineConfig config = ConfigOf("deepseek_v3");
  config.speculative = {.algorithm = "STANDALONE",
                        .num_steps = "3",
                        .draft_model_path = Fixture("deepseek_v3").string()};
  for (const float temperature : {0.0f, 1.0f}) {
    const EngineStats stats = StatsOf(config, temperature);
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
    EXPECT_EQ(stats.accepted_tokens, 8 * 30);  // 8 requests, each with 10 steps of 3 drafts
  }
}

// A map with all tokens of the outputs drafts as the whole head does: the rows have the same
// logits.
TEST(SpeculativeEngineTest, ATokenMapWithTheTokensOfTheOutputsKeepsAllDrafts) {
  EngineConfig config = ConfigOf("deepseek_v3", {2, 1});
  const uint64_t requests = 6;
  const auto request = [](uint64_t i, int32_t vocab) {
    EngineRequest r;
    for (int32_t t = 0; t < 9; ++t) r.input_ids.push_back(1 + Below(i, t, vocab - 1));
    r.sampling = {.max_new_tokens = 25, .temperature = 0, .ignore_eos = true};
    return r;
  };
  std::set<int32_t> used;
  Outputs want;
  {
    Engine plain(config);
    want = RunAll(plain, requests, request);
  }
  for (const auto& [id, output] : want)
    used.insert(output.new_tokens.begin(), output.new_tokens.end());
  const testing::TempDir dir;
  config.speculative = {.algorithm = "STANDALONE",
                        .num_steps = "3",
                        .draft_model_path = Fixture("deepseek_v3").string(),
                        .token_map = (dir.path() / "map.json").string()};
  WriteTokenMap(config.speculative.token_map, std::vector<int32_t>(used.begin(), used.end()));
  Engine engine(config);
  ExpectEqual(RunAll(engine, requests, request), want);
  const EngineStats stats = Total(engine.Stats());
  EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
  EXPECT_GT(stats.accepted_tokens, 0);
}

// In trees of a copy of the target, the first draft after each accepted one is the next token. So
// rows of the draft model attend to the keys of their ancestors only.
TEST(SpeculativeEngineTest, TheTargetAsItsDraftModelGrowsCorrectTrees) {
  EngineConfig config = ConfigOf("deepseek_v3");
  config.speculative = {.algorithm = "STANDALONE",
                        .num_steps = "3",
                        .eagle_topk = 2,
                        .num_draft_tokens = 11,
                        .draft_model_path = Fixture("deepseek_v3").string()};
  for (const float temperature : {0.0f, 1.0f}) {
    const EngineStats stats = StatsOf(config, temperature);
    EXPECT_EQ(stats.accepted_by_position, stats.verified_by_position);
    EXPECT_EQ(stats.accepted_by_position.size(), 3u);
    EXPECT_GT(stats.accepted_by_position.at(2), 0);
  }
}

// The bundled model has a trained MTP layer. Training data had no prompts of random tokens, but the
// layer still guesses some of the output tokens.
TEST(SpeculativeEngineTest, ATrainedMtpLayerGuessesManyTokens) {
  EngineConfig config = ConfigOf("yardling");
  config.speculative = {.algorithm = "NEXTN", .num_steps = "1"};
  const EngineStats stats = StatsOf(config, 0);
  EXPECT_GT(static_cast<double>(stats.accepted_tokens),
            0.25 * static_cast<double>(stats.drafted_tokens));
}

// For each layer in a rank's trace, the names of its dispatcher and runner.
std::map<int, std::set<std::string>> BackendsOfTrace(const fs::path& dir) {
  std::map<int, std::set<std::string>> found;
  for (const auto& file : fs::directory_iterator(dir)) {
    std::ifstream in(file.path());
    const auto trace = nlohmann::json::parse(in);
    for (const auto& event : trace["traceEvents"])
      if (event.contains("args") && event["args"].contains("backend"))
        found[event["args"]["layer"]].insert(event["args"]["backend"]);
  }
  return found;
}

TEST(SpeculativeEngineTest, TheDraftsLayersHaveTheirOwnBackends) {
  const TemporaryDirectory directory;
  EngineConfig config = ConfigOf("deepseek_v3", {2, 2});
  config.speculative = {.algorithm = "NEXTN", .num_steps = "2"};
  config.moe.a2a_backend = "deepep";
  config.moe.runner_backend = "grouped_mlp";
  config.moe.speculative_a2a_backend = "flashinfer";
  config.moe.speculative_runner_backend = "masked_mlp";
  {
    Engine engine(config);
    engine.Tell(StartProfile{.options = {.dir = directory.path().string(), .name = "draft"}});
    RunAll(engine, 3);
    engine.Tell(StopProfile{});
    EXPECT_TRUE(engine.FlushCache());  // returns after the profile was written
  }
  const auto backends = BackendsOfTrace(directory.path());
  const std::set<std::string> target = {"deepep", "grouped_mlp"};
  const std::set<std::string> draft = {"flashinfer", "masked_mlp"};
  const std::map<int, std::set<std::string>> want = {{1, target}, {2, target}, {3, draft}};
  EXPECT_EQ(backends, want);
}

std::string ErrorOf(const EngineConfig& config) {
  try {
    MakePlan(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(SpeculativeEngineTest, UnfitDraftsAreRefusedByName) {
  EngineConfig config = ConfigOf("qwen3_moe");
  config.speculative.algorithm = "NEXTN";
  EXPECT_THAT(ErrorOf(config), HasSubstr("no multi-token prediction (MTP) layer"));
  config.speculative = {.algorithm = "EAGLE3"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("EAGLE3: needs --speculative-draft-model-path"));
  config.speculative = {.algorithm = "MEDUSA"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-algorithm MEDUSA"));
  config.speculative = {.algorithm = "EAGLE", .draft_model_path = Fixture("deepseek_v3").string()};
  EXPECT_THAT(ErrorOf(config), HasSubstr("DeepseekV3ForCausalLM"));
  config.speculative = {.algorithm = "STANDALONE"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("needs --speculative-draft-model-path"));
  config.speculative.draft_model_path = Fixture("yardling");
  EXPECT_THAT(ErrorOf(config), HasSubstr("vocabulary"));
  config.speculative = {.algorithm = "NGRAM", .eagle_topk = 2};
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-eagle-topk 2"));
  const std::string small = Fixture("qwen3_moe").string();
  config.speculative = {.algorithm = "STANDALONE", .eagle_topk = 17, .draft_model_path = small};
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-eagle-topk 17: want 1 to 16"));
  config.speculative.eagle_topk = 2;
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-eagle-topk 2: trees need numbers"));
  config.speculative.num_steps = "2";
  config.speculative.num_draft_tokens = 8;
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-num-draft-tokens 8"));
  config.speculative.num_draft_tokens = 4;
  const testing::TempDir dir;
  config.speculative.token_map = (dir.path() / "map.json").string();
  WriteTokenMap(config.speculative.token_map, std::vector<int32_t>{4});
  EXPECT_THAT(ErrorOf(config),
              HasSubstr("--speculative-eagle-topk 2: the draft model has only 1 tokens"));
  config.speculative = {.algorithm = "NGRAM", .num_steps = "3", .num_draft_tokens = 5};
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-num-draft-tokens 5"));
  config.speculative = {.algorithm = "NGRAM", .num_steps = "17"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-num-steps 17"));
  config.speculative = {.num_steps = "3"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-num-steps: needs"));
  config.speculative = {.algorithm = "NGRAM"};
  config.moe.speculative_runner_backend = "grouped_mlp";
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-moe-runner-backend grouped_mlp"));
}

TEST(SpeculativeEngineTest, DraftsWithScalesOfAnotherCacheAreRefused) {
  const testing::TempDir dir;
  const auto write = [&](const char* type) {
    std::ifstream file(Fixture("olmoe") / "config.json");
    nlohmann::json settings = nlohmann::json::parse(file);
    settings["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                       {"kv_cache_scheme", {{"num_bits", 8}, {"type", type}}}};
    testing::WriteBytes(dir.path() / "config.json", settings.dump());
  };
  EngineConfig config = ConfigOf("olmoe");
  config.speculative = {.algorithm = "STANDALONE", .draft_model_path = dir.path().string()};
  config.kv_cache_dtype = "fp8_e4m3";
  write("int");
  EXPECT_THAT(ErrorOf(config),
              AllOf(HasSubstr("--speculative-draft-model-path"),
                    HasSubstr("kv_cache_scheme is int of 8 bits"), HasSubstr("--kv-cache-dtype")));
  config.kv_cache_dtype = "auto";
  EXPECT_EQ(ErrorOf(config), "no error");
  config.kv_cache_dtype = "fp8_e4m3";
  write("float");
  EXPECT_EQ(ErrorOf(config), "no error");
}

// The plan needs no weight files, but reads the headers of those that exist.
TEST(SpeculativeEngineTest, APlanRefusesATokenMapForAQuantizedHead) {
  const testing::TempDir dir;
  testing::CopyConfig(Fixture("olmoe"), dir.path());
  EngineConfig config = ConfigOf("olmoe");
  config.speculative = {.algorithm = "STANDALONE", .draft_model_path = dir.path().string()};
  config.speculative.token_map = (dir.path() / "map.json").string();
  WriteTokenMap(config.speculative.token_map, std::vector<int32_t>{1, 4});
  EXPECT_EQ(ErrorOf(config), "no error");
  testing::RawTensors tensors = testing::ReadSafetensors(Fixture("olmoe"));
  const testing::RawTensor plain = tensors.at("lm_head.weight");
  const auto refuses = [&] {
    testing::WriteSafetensors(dir.path() / "model.safetensors", tensors);
    EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-token-map: tensor \"lm_head.weight\" is "
                                           "quantized in the checkpoint"));
  };
  const auto codes = static_cast<size_t>(plain.shape[0] * plain.shape[1]);
  tensors["lm_head.weight"] = {"F8_E4M3", plain.shape, std::string(codes, '\0')};
  refuses();
  tensors.erase("lm_head.weight");
  tensors["lm_head.qweight"] = {"U8", plain.shape, std::string(codes, '\0')};
  refuses();
  tensors["lm_head.weight"] = plain;
  testing::WriteSafetensors(dir.path() / "model.safetensors", tensors);
  EXPECT_EQ(ErrorOf(config), "no error");
}

TEST(SpeculativeOptionsTest, NamesTheFlagsThatAPrefillWorkerDoesNotUse) {
  EXPECT_THAT(FlagsOfDecodeOnly({.algorithm = "NEXTN", .draft_quantization = "unquant"}),
              IsEmpty());
  EXPECT_THAT(
      FlagsOfDecodeOnly({.algorithm = "NEXTN",
                         .num_steps = "3",
                         .eagle_topk = 2,
                         .num_draft_tokens = 7,
                         .simulate_acceptance = 0}),
      ElementsAre("--speculative-num-steps 3", "--speculative-eagle-topk 2",
                  "--speculative-num-draft-tokens 7", "--speculative-simulate-acceptance 0"));
}

TEST(SpeculativeOptionsTest, LimitsTheBranchesOfTreesOnGpus) {
  EngineConfig config = ConfigOf("qwen3_moe", {});
  config.device = "cuda";
  config.max_running_requests = 1 << 15;
  config.speculative = {.algorithm = "STANDALONE",
                        .num_steps = "4",
                        .eagle_topk = 4,
                        .num_draft_tokens = 16,
                        .draft_model_path = config.model_path};
  const Machine gpu{.cuda = true, .memory = {.total = int64_t{80} << 30}, .cpus = 4};
  try {
    MakePlanOn(gpu, ReadModelConfig(config), config, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--max-running-requests 32768: on GPUs, at most"));
  }
}

}  // namespace
}  // namespace switchyard
