// SGLang's flags and environment variables: honoured, accepted without effect, or refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <set>

#include "core/error.h"
#include "moe/dispatchers/rounds.h"
#include "server/args/args.h"
#include "server/args/settle_args.h"
#include "server/args/tool_args.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> With(std::vector<std::string> words) {
  words.insert(words.begin(), {"--model-path", "/m"});
  return words;
}

std::string ErrorOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
std::string ErrorOf(const std::vector<std::string>& words) {
  return ErrorOf([&] { ParseServe(With(words)); });
}

// Tokens per combine in a pass of 20000 tokens per rank, in rounds of 8192.
std::string TokensPerCombine(const MoeOptions& options) {
  const ExchangeShape shape{.hidden = 64, .k = 2, .max_tokens = 20000};
  return std::to_string(RoundsOfPass(options, shape).combine_tokens);
}

// Flags without effect, each with a typical value.
TEST(SglangFlagsTest, TakenWithoutEffectAndSaidOnce) {
  const std::vector<std::vector<std::string>> kTaken = {
      {"--attention-backend", "fa3"},
      {"--enable-torch-compile"},
      {"--torch-compile-max-bs", "8"},
      {"--skip-tokenizer-init"},
      {"--log-requests-format", "json"},
      {"--enable-dp-lm-head"},
      {"--disable-shared-experts-fusion"},
      {"--completion-template", "deepseek_coder"},
      {"--log-level-http", "warning"},
      {"--enable-mixed-chunk"},
      {"--trust-remote-code"},
      {"--enable-metrics"},
      {"--disable-outlines-disk-cache"},
      {"--cuda-graph-bs", "1", "2", "4"},
      {"--disaggregation-ib-device", "mlx5_0"},
  };
  for (std::vector<std::string> words : kTaken) {
    const std::string flag = words.front();
    const std::vector<std::string> plain = words;
    words.insert(words.end(), plain.begin(), plain.end());  // given twice, logged once
    const auto args = ParseServe(With(words));
    ASSERT_TRUE(args) << flag;
    EXPECT_THAT(args->without_effect, ElementsAre(HasSubstr(flag + " has no effect here: ")))
        << flag;
  }
}

TEST(SglangFlagsTest, RefusedByName) {
  const std::vector<std::vector<std::string>> kRefused = {
      {"--reasoning-parser", "deepseek-r9"},
      {"--tool-call-parser", "qwen99"},
      {"--tool-server", "demo"},
      {"--lora-paths", "a=b"},
      {"--disaggregation-mode", "both"},
      {"--disaggregation-transfer-backend", "mooncake"},
      {"--disaggregation-bootstrap-port", "9000"},  // without a mode
      {"--pp-async-batch-depth", "-1"},
      {"--pp-max-micro-batch-size", "many"},
      {"--ssl-ca-certs", "ca.pem"},
      {"--grammar-backend", "outlines"},
      {"--constrained-json-whitespace-pattern", "[ab]"},
      {"--schedule-policy", "best"},
      {"--schedule-conservativeness", "-1"},
      {"--max-prefill-tokens", "many"},
      {"--decode-log-interval", "-1"},
  };
  for (const std::vector<std::string>& words : kRefused)
    EXPECT_THAT(ErrorOf(words), HasSubstr(words.front())) << words.front();
}

TEST(SglangFlagsTest, PoolingFlagsSetTheEngine) {
  EXPECT_FALSE(ParseServe(With({}))->engine.pooling.is_embedding);
  const auto args = ParseServe(
      With({"--is-embedding", "--override-pooler-config", R"({"pooling_type": "MEAN"})"}));
  EXPECT_TRUE(args->engine.pooling.is_embedding);
  EXPECT_EQ(args->engine.pooling.pooler_config, R"({"pooling_type": "MEAN"})");
}

TEST(SglangFlagsTest, UnknownParsersListTheKnownOnes) {
  EXPECT_THAT(ErrorOf({"--tool-call-parser", "qwen99"}),
              AllOf(HasSubstr("qwen99"), HasSubstr("auto, none, "), HasSubstr("qwen3_coder"),
                    HasSubstr("hermes")));
  EXPECT_THAT(ErrorOf({"--reasoning-parser", "r9"}),
              AllOf(HasSubstr("r9"), HasSubstr("auto, none, "), HasSubstr("deepseek-r1")));
  for (const char* name : {"auto", "none", "deepseek_v3", "openai"})
    EXPECT_EQ(ParseServe(With({"--tool-call-parser", name}))->tool_call_parser, name);
}

TEST(SglangFlagsTest, EveryNameStandsOnceAndHasItsReason) {
  std::set<std::string> names;
  for (const SglangFlag& flag : SglangFlags()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    EXPECT_NE(std::string(flag.why), "") << flag.name;
  }
}

TEST(SglangFlagsTest, HonouredOnesReachTheEngine) {
  const auto args =
      ParseServe(With({"--schedule-policy", "dfs-weight", "--schedule-conservativeness", "0.3",
                       "--max-prefill-tokens", "99", "--decode-log-interval", "7"}));
  ASSERT_TRUE(args);
  const EngineConfig back = DecodeConfig(EncodeConfig(args->engine));
  EXPECT_EQ(back.schedule_policy, "dfs-weight");
  EXPECT_EQ(back.schedule_conservativeness, 0.3);
  EXPECT_EQ(back.max_prefill_tokens, 99);
  EXPECT_EQ(back.decode_log_interval, 7);
  const auto overlap = ParseServe(With({"--enable-single-batch-overlap"}));
  EXPECT_TRUE(DecodeConfig(EncodeConfig(overlap->engine)).moe.single_batch_overlap);
}

TEST(SglangFlagsTest, PipelineFlagsReachTheEngine) {
  const auto args = ParseServe(With({"--pipeline-parallel-size", "3", "--pp-layer-partition",
                                     "2,2,1", "--max-micro-batch-size", "8",
                                     "--pp-async-batch-depth", "1", "--enable-dynamic-chunking"}));
  ASSERT_TRUE(args);
  const EngineConfig back = DecodeConfig(EncodeConfig(args->engine));
  EXPECT_EQ(back.mesh.pp, 3);
  EXPECT_EQ(back.pp_layer_partition, "2,2,1");
  EXPECT_EQ(back.pp_max_micro_batch_size, 8);
  EXPECT_EQ(back.pp_async_batch_depth, 1);
  EXPECT_TRUE(back.dynamic_chunking);
  ASSERT_EQ(setenv("SGLANG_PP_LAYER_PARTITION", "1,2", 1), 0);
  EXPECT_EQ(ParseServe(With({"--pp-size", "2"}))->engine.pp_layer_partition, "1,2");
  EXPECT_EQ(ParseServe(With({}))->engine.pp_layer_partition, "");  // one stage
  ASSERT_EQ(unsetenv("SGLANG_PP_LAYER_PARTITION"), 0);
}

TEST(SglangFlagsTest, OlderMicroBatchSizeHasNoEffectWithoutStages) {
  const auto args = ParseServe(With({"--max-micro-batch-size=8"}));
  ASSERT_TRUE(args);
  EXPECT_EQ(args->engine.pp_max_micro_batch_size, 0);
  EXPECT_THAT(args->without_effect,
              ::testing::Contains("--max-micro-batch-size 8 has no effect here without --pp-size"));
}

TEST(SglangFlagsTest, SpeculativeFlagsReachTheEngine) {
  const auto args = ParseServe(With(
      {"--speculative-algo", "STANDALONE", "--speculative-draft", "small",
       "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "4",
       "--speculative-eagle-topk", "1", "--speculative-moe-a2a-backend", "deepep",
       "--speculative-moe-runner-backend", "masked_mlp", "--speculative-draft-model-quantization",
       "int4", "--speculative-token-map", "tokens.json"}));
  ASSERT_TRUE(args);
  const EngineConfig back = DecodeConfig(EncodeConfig(args->engine));
  EXPECT_EQ(back.speculative.algorithm, "STANDALONE");
  EXPECT_EQ(back.speculative.draft_model_path, "small");
  EXPECT_EQ(back.speculative.num_steps, "3");
  EXPECT_EQ(back.speculative.draft_quantization, "int4");
  EXPECT_EQ(back.speculative.token_map, "tokens.json");
  EXPECT_EQ(back.speculative.num_draft_tokens, 4);
  EXPECT_EQ(back.moe.speculative_a2a_backend, "deepep");
  EXPECT_EQ(back.moe.speculative_runner_backend, "masked_mlp");
  EXPECT_EQ(ParseServe(With({}))->engine.speculative.algorithm, "");
}

TEST(SglangFlagsTest, GrammarFlagsReachTheServer) {
  const auto args =
      ParseServe(With({"--grammar-backend", "none", "--constrained-json-whitespace-pattern", "",
                       "--constrained-json-disable-any-whitespace"}));
  ASSERT_TRUE(args);
  EXPECT_EQ(args->grammar_backend, "none");
  EXPECT_EQ(args->json_whitespace, "");
  EXPECT_TRUE(args->json_disable_any_whitespace);
  EXPECT_EQ(ParseServe(With({}))->grammar_backend, "xgrammar");
}

TEST(SglangFlagsTest, DpRankOfTheEnvironmentIsCheckedAndSaid) {
  ASSERT_EQ(setenv("SGLANG_DP_RANK", "3", 1), 0);
  const auto args = ParseServe(With({}));
  ASSERT_EQ(setenv("SGLANG_DP_RANK", "x", 1), 0);
  const std::string error = ErrorOf(std::vector<std::string>{});
  ASSERT_EQ(unsetenv("SGLANG_DP_RANK"), 0);
  EXPECT_THAT(args->without_effect, ElementsAre(HasSubstr("SGLANG_DP_RANK=3 has no effect")));
  EXPECT_THAT(error, HasSubstr("SGLANG_DP_RANK=x"));
}

// Returns the member of the arguments that is expected to change.
using Observed = std::function<std::string(const ServerArgs&)>;

struct Honoured {
  std::vector<std::string> words;  // command line
  // Environment variables and their values.
  std::vector<std::pair<const char*, const char*>> variables;
  Observed observed;
  std::string want;
};

// SGLang's flags and variables that change the server's behaviour.
TEST(SglangFlagsTest, HonouredOnesChangeTheArguments) {
  const std::vector<Honoured> kHonoured = {
      {{"--tp", "4", "--enable-ep-moe"},
       {},
       [](const ServerArgs& a) { return std::to_string(a.engine.mesh.ep); },
       "4"},
      {{"--tp", "2", "--enable-deepep-moe"},
       {},
       [](const ServerArgs& a) { return a.engine.moe.a2a_backend; },
       "deepep"},
      {{"--enable-two-batch-overlap"},
       {},
       [](const ServerArgs& a) { return a.engine.two_batch_overlap ? "two" : "one"; },
       "two"},
      {{"--moe-a2a-backend", "deepep", "--enable-single-batch-overlap"},
       {},
       [](const ServerArgs& a) { return a.engine.moe.single_batch_overlap ? "single" : "none"; },
       "single"},
      {{"--tbo-token-distribution-threshold", "0.25"},
       {},
       [](const ServerArgs& a) { return std::to_string(a.engine.tbo_threshold); },
       "0.250000"},
      {{"--tbo-min-tokens", "64"},
       {},
       [](const ServerArgs& a) { return std::to_string(a.engine.tbo_min_tokens); },
       "64"},
      {{"--schedule-policy", "lpm"},
       {},
       [](const ServerArgs& a) { return a.engine.schedule_policy; },
       "lpm"},
      {{"--schedule-conservativeness", "0.5"},
       {},
       [](const ServerArgs& a) { return std::to_string(a.engine.schedule_conservativeness); },
       "0.500000"},
      {{"--max-prefill-tokens", "512"},
       {},
       [](const ServerArgs& a) { return std::to_string(a.engine.max_prefill_tokens); },
       "512"},
      {{"--decode-log-interval", "40"},
       {},
       [](const ServerArgs& a) { return std::to_string(a.engine.decode_log_interval); },
       "40"},
      {{"--watchdog-timeout", "3600"},
       {},
       [](const ServerArgs& a) { return std::to_string(a.engine.watchdog_timeout_seconds); },
       "3600.000000"},
      {{"--stream-output"},
       {},
       [](const ServerArgs& a) { return a.stream_output ? "segments" : "all"; },
       "segments"},
      {{"--tool-call-parser", "qwen25"},
       {},
       [](const ServerArgs& a) { return a.tool_call_parser; },
       "qwen25"},
      {{"--reasoning-parser", "deepseek-r1"},
       {},
       [](const ServerArgs& a) { return a.reasoning_parser; },
       "deepseek-r1"},
      {{"--weight-version", "step-7"},
       {},
       [](const ServerArgs& a) { return a.weight_version; },
       "step-7"},
      {{"--init-expert-location", R"({"logical_count": [[1]]})"},
       {},
       [](const ServerArgs& a) { return a.engine.moe.init_expert_location; },
       R"({"logical_count": [[1]]})"},
      {{"--moe-a2a-backend", "deepep"},
       {{"DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ", "1"}},
       [](const ServerArgs& a) { return TokensPerCombine(a.engine.moe); },
       "8192"},
      {{"--moe-a2a-backend", "deepep"},
       {{"HCCL_BUFFSIZE", "1024"}},
       [](const ServerArgs& a) { return std::to_string(a.engine.moe.hccl_buffer_mib); },
       "1024"},
      {{},
       {{"SGLANG_SET_CPU_AFFINITY", "false"}},
       [](const ServerArgs& a) { return a.engine.cpu_bind; },
       "none"},
  };
  for (const Honoured& row : kHonoured) {
    const std::string name = row.words.empty() ? row.variables[0].first : row.words.back();
    const auto plain = ParseServe(With({}));
    for (const auto& [variable, value] : row.variables) setenv(variable, value, 1);
    const auto args = ParseServe(With(row.words));
    for (const auto& [variable, value] : row.variables) unsetenv(variable);
    ASSERT_TRUE(plain && args) << name;
    EXPECT_EQ(row.observed(*args), row.want) << name;
    EXPECT_NE(row.observed(*plain), row.want) << name;
    EXPECT_THAT(args->without_effect, ::testing::IsEmpty()) << name;
  }
}

TEST(SglangFlagsTest, SingleBatchOverlapThatNothingUsesIsSaid) {
  const auto lines = [](const std::vector<std::string>& backend) {
    std::vector<std::string> words = {"--enable-single-batch-overlap"};
    words.insert(words.end(), backend.begin(), backend.end());
    return ParseServe(With(words))->without_effect;
  };
  EXPECT_THAT(lines({}), ElementsAre(HasSubstr("--enable-single-batch-overlap has no effect here: "
                                               "--moe-a2a-backend none sends no rows")));
  EXPECT_THAT(lines({"--moe-a2a-backend", "fused"}),
              ElementsAre(AllOf(HasSubstr("fused does not return outputs in parts"),
                                HasSubstr("want deepep, flashinfer or mooncake"))));
  for (const char* backend : {"deepep", "flashinfer", "mooncake"})
    EXPECT_THAT(lines({"--moe-a2a-backend", backend}), ::testing::IsEmpty()) << backend;
}

TEST(SglangFlagsTest, VariablesOfRoundsThatNothingUsesAreSaid) {
  const auto lines = [](const std::vector<std::string>& words) {
    setenv("HCCL_BUFFSIZE", "200", 1);
    setenv("DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ", "1", 1);
    const auto args = ParseServe(With(words));
    unsetenv("HCCL_BUFFSIZE");
    unsetenv("DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ");
    return args->without_effect;
  };
  EXPECT_THAT(lines({}), ElementsAre(HasSubstr("HCCL_BUFFSIZE=200 has no effect here"),
                                     HasSubstr("COMBINE_ENABLE_LONG_SEQ=1 has no effect here")));
  EXPECT_THAT(lines({"--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency"}),
              Each(HasSubstr("--deepep-mode low_latency")));
  EXPECT_THAT(lines({"--moe-a2a-backend", "deepep"}), ::testing::IsEmpty());
}

TEST(SglangFlagsTest, OlderFormsOfExpertParallelism) {
  const auto ep = ParseServe(With({"--tp", "4", "--enable-ep-moe"}));
  EXPECT_EQ(ep->engine.mesh.ep, 4);
  EXPECT_EQ(ep->engine.moe.a2a_backend, "none");
  const auto deepep = ParseServe(With({"--tp", "4", "--ep", "2", "--enable-deepep-moe"}));
  EXPECT_EQ(deepep->engine.mesh.ep, 2);
  EXPECT_EQ(deepep->engine.moe.a2a_backend, "deepep");
  EXPECT_THAT(ErrorOf({"--enable-deepep-moe", "--moe-a2a-backend", "none"}),
              AllOf(HasSubstr("--enable-deepep-moe"), HasSubstr("none")));
}

TEST(SglangFlagsTest, UniquePrefixesAreWrittenOut) {
  EXPECT_EQ(ParseServe(With({"--mem-frac", "0.5"}))->engine.mem_fraction_static, 0.5);
  EXPECT_EQ(ParseServe(With({"--mem-frac=0.25"}))->engine.mem_fraction_static, 0.25);
  EXPECT_EQ(ParseServe({"--model-p", "/m"})->engine.model_path, "/m");
  EXPECT_EQ(ParseServe(With({"--data-par", "1"}))->dp_size, 1);
  EXPECT_THAT(ErrorOf({"--max-r", "x"}), HasSubstr("--max-running-requests"));
  EXPECT_THAT(ErrorOf({"--schedule", "x"}),
              AllOf(HasSubstr("--schedule is ambiguous"), HasSubstr("--schedule-policy"),
                    HasSubstr("--schedule-conservativeness")));
}

TEST(SglangFlagsTest, MistypedNamesGetTheNearest) {
  EXPECT_THAT(ErrorOf({"--mem-fraction-statik", "1"}), HasSubstr("--mem-fraction-static"));
  EXPECT_THAT(ErrorOf({"--sheduel-policy", "1"}), HasSubstr("--schedule-policy"));
  EXPECT_THAT(ErrorOf([] { ParseEplb("paln", {}); }), HasSubstr("nearest is eplb plan"));
  EXPECT_THAT(ErrorOf([] {
                ParseEplb("plan", {"f", "--ranks", "2", "--algorithn", "x"});
              }),
              HasSubstr("--algorithm"));
  EXPECT_THAT(ErrorOf([] { ParseBench("kernel", {}); }), HasSubstr("nearest is bench kernels"));
}

}  // namespace
}  // namespace switchyard
