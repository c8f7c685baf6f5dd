#include "server/args/args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/temporary_directory.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::vector<std::string>& args) {
  try {
    ParseServe(args);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// Returns the path of a file with the text. The process deletes it at its end.
std::string WriteYaml(const std::string& text) {
  static const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "args.yaml";
  std::ofstream(file) << text;
  return file.string();
}

TEST(ArgsTest, SglangsSpellings) {
  const auto a =
      ParseServe({"--model-path", "/m", "--tp", "4", "--expert-parallel-size", "2",
                  "--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency",
                  "--mem-fraction-static", "0.5", "--trust-remote-code", "--port", "1234"});
  ASSERT_TRUE(a);
  EXPECT_EQ(a->engine.model_path, "/m");
  EXPECT_EQ(a->engine.mesh.tp, 4);
  EXPECT_EQ(a->engine.mesh.ep, 2);
  EXPECT_EQ(a->engine.moe.a2a_backend, "deepep");
  EXPECT_EQ(a->engine.moe.deepep_mode, "low_latency");
  EXPECT_DOUBLE_EQ(a->engine.mem_fraction_static, 0.5);
  EXPECT_EQ(a->port, 1234);
}

TEST(ArgsTest, AttentionGroups) {
  const auto a = ParseServe({"--model-path", "/m", "--tp", "8", "--data-parallel-size", "4",
                             "--enable-dp-attention", "--moe-dense-tp-size", "1",
                             "--load-balance-method", "total_tokens", "--enable-dp-lm-head"});
  ASSERT_TRUE(a);
  EXPECT_EQ(a->engine.mesh.dp, 4);
  EXPECT_EQ(a->engine.mesh.dense_tp, 1);
  EXPECT_EQ(a->engine.load_balance_method, "total_tokens");
  EXPECT_EQ(ParseServe({"--model-path", "/m", "--load-balance-method", "cache_aware"})
                ->engine.load_balance_method,
            "cache_aware");
  EXPECT_EQ(ParseServe({"--model-path", "/m", "--enable-dp-attention"})->engine.mesh.dp, 1);
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--tp", "2", "--dp-size", "2"}),
              HasSubstr("or add --enable-dp-attention"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--load-balance-method", "best"}),
              HasSubstr("total_requests"));
}

TEST(ArgsTest, RanksWithExpertsOnly) {
  const auto a = ParseServe({"--model-path", "/m", "--tp", "2", "--expert-ranks", "1",
                             "--expert-slots", "6,10", "--eplb-rank-costs", "1:40,20:900"});
  ASSERT_TRUE(a);
  const MeshShape& mesh = a->engine.mesh;
  EXPECT_EQ(mesh.expert_ranks, 1);
  EXPECT_EQ(mesh.expert_slots, (std::vector<int32_t>{6, 10}));
  EXPECT_EQ(mesh.ep, 2);
  EXPECT_EQ(mesh.dp, 2);
  EXPECT_EQ(mesh.dense_tp, 1);
  EXPECT_EQ(mesh.attention_groups(), 1);
  const EngineConfig back = DecodeConfig(EncodeConfig(a->engine));
  EXPECT_EQ(back.mesh.expert_ranks, 1);
  EXPECT_EQ(back.mesh.expert_slots, mesh.expert_slots);
  EXPECT_EQ(back.eplb.rank_costs, "1:40,20:900");
  const auto two = ParseServe({"--model-path", "/m", "--tp", "3", "--expert-ranks", "1",
                               "--dp-size", "2", "--enable-dp-attention"});
  EXPECT_EQ(two->engine.mesh.attention_groups(), 2);
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--tp", "3", "--expert-ranks", "1"}),
              HasSubstr("want --dp-size 2"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--tp", "2", "--expert-ranks", "2"}),
              HasSubstr("--expert-ranks 2: want less than --tp-size 2"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--expert-slots", "a"}),
              HasSubstr("--expert-slots a: want a number"));
}

TEST(ArgsTest, ExpertsOnCpusByChoice) {
  EXPECT_EQ(ParseServe({"--model-path", "/m"})->cpu_experts, "auto");
  EXPECT_EQ(ParseServe({"--model-path", "/m", "--cpu-experts", "off"})->cpu_experts, "off");
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--cpu-experts", "on"}), HasSubstr("auto"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--cpu-experts", "off", "--device", "cuda,cpu", "--tp",
                       "2", "--expert-ranks", "1"}),
              HasSubstr("--cpu-experts off: --device cuda,cpu places experts on CPUs"));
}

TEST(ArgsTest, MixtureOfExperts) {
  const auto a = ParseServe({"--model-path",
                             "/m",
                             "--enable-deepep-waterfill",
                             "--deepep-dispatcher-output-dtype",
                             "fp8",
                             "--moe-combine-rows",
                             "rank",
                             "--deepep-normal-long-seq-round",
                             "3",
                             "--deepep-normal-long-seq-per-round-tokens",
                             "64",
                             "--ep-num-redundant-experts",
                             "2",
                             "--init-expert-location",
                             "/p.json",
                             "--moe-runner-backend",
                             "masked_mlp",
                             "--quantization",
                             "fp8",
                             "--expert-distribution-recorder-mode",
                             "per_token",
                             "--expert-distribution-recorder-buffer-size",
                             "-1",
                             "--expert-distribution-recorder-dir",
                             "/d",
                             "--enable-expert-distribution-metrics",
                             "--enable-eplb",
                             "--eplb-algorithm",
                             "deepseek",
                             "--eplb-rebalance-num-iterations",
                             "77",
                             "--eplb-rebalance-layers-per-chunk",
                             "-1",
                             "--eplb-min-rebalancing-utilization-threshold",
                             "0.75",
                             "--eplb-watchdog-timeout",
                             "2.5",
                             "--ep-dispatch-algorithm",
                             "balanced"});
  ASSERT_TRUE(a);
  const MoeOptions& moe = a->engine.moe;
  EXPECT_TRUE(moe.waterfill);
  EXPECT_EQ(moe.dispatcher_output_dtype, "fp8");
  EXPECT_EQ(moe.combine_rows, "rank");
  EXPECT_EQ(moe.long_seq_rounds, 3);
  EXPECT_EQ(moe.long_seq_per_round_tokens, 64);
  EXPECT_EQ(moe.num_redundant_experts, 2);
  EXPECT_EQ(moe.init_expert_location, "/p.json");
  EXPECT_EQ(moe.runner_backend, "masked_mlp");
  EXPECT_EQ(a->engine.quantization.method, "fp8");

  // The serialized configuration that ranks receive is complete.
  const EngineConfig back = DecodeConfig(EncodeConfig(a->engine));
  EXPECT_EQ(EncodeConfig(back), EncodeConfig(a->engine));
  EXPECT_TRUE(back.moe.waterfill);
  EXPECT_EQ(back.moe.long_seq_per_round_tokens, 64);
  EXPECT_EQ(back.moe.init_expert_location, "/p.json");
  EXPECT_EQ(back.quantization.method, "fp8");
  EXPECT_EQ(back.recorder.mode, "per_token");
  EXPECT_EQ(back.recorder.buffer_size, -1);
  EXPECT_EQ(back.recorder.dir, "/d");
  EXPECT_TRUE(back.recorder.metrics);
  EXPECT_TRUE(back.eplb.enable);
  EXPECT_EQ(back.eplb.algorithm, "deepseek");
  EXPECT_EQ(back.eplb.num_iterations, 77);
  EXPECT_EQ(back.eplb.layers_per_chunk, -1);
  EXPECT_EQ(back.eplb.min_utilization, 0.75);
  EXPECT_EQ(back.eplb.watchdog_seconds, 2.5);
  EXPECT_EQ(back.eplb.dispatch, "balanced");
}

TEST(ArgsTest, FlagsOverrideSglangsEnvironment) {
  constexpr const char* kName = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK";
  ASSERT_EQ(setenv(kName, "64", 1), 0);
  const auto from_environment = ParseServe({"--model-path", "/m"});
  const auto from_flag =
      ParseServe({"--model-path", "/m", "--num-max-dispatch-tokens-per-rank", "32"});
  ASSERT_EQ(unsetenv(kName), 0);
  EXPECT_EQ(from_environment->engine.moe.max_dispatch_tokens_per_rank, 64);
  EXPECT_EQ(from_flag->engine.moe.max_dispatch_tokens_per_rank, 32);
}

TEST(ArgsTest, CommandLineOverridesTheFile) {
  std::string path =
      WriteYaml("model-path: /from/file\ntp_size: 2\ndisable-radix-cache: true\nport: 7\n");
  const auto a = ParseServe({"--config", path, "--port", "8"});
  ASSERT_TRUE(a);
  EXPECT_EQ(a->engine.model_path, "/from/file");
  EXPECT_EQ(a->engine.mesh.tp, 2);
  EXPECT_TRUE(a->engine.disable_radix_cache);
  EXPECT_EQ(a->port, 8);
}

TEST(ArgsTest, PrintsTheScheduleOnlyIfSet) {
  EXPECT_FALSE(ParseServe({"--model-path", "/m"})->print_schedule);
  EXPECT_TRUE(ParseServe({"--model-path", "/m", "--print-schedule"})->print_schedule);
}

TEST(ArgsTest, SwitchesThatAreOffStayOff) {
  const auto a =
      ParseServe({"--config", WriteYaml("model-path: /m\ndisable-radix-cache: false\n")});
  ASSERT_TRUE(a);
  EXPECT_FALSE(a->engine.disable_radix_cache);
}

TEST(ArgsTest, ErrorsNameTheFlag) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("--model-path"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--tp", "two"}), HasSubstr("--tp"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--no-such-flag"}), HasSubstr("--no-such-flag"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--port", "70000"}), HasSubstr("--port"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--deepep-mode", "fast"}), HasSubstr("low_latency"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--device", "tpu"}), HasSubstr("--device"));
  EXPECT_THAT(ErrorOf({"--config", "/no/such/file.yaml"}), HasSubstr("/no/such/file.yaml"));
  EXPECT_THAT(ErrorOf({"--config", WriteYaml("tp-size: {a: 1}\n")}), HasSubstr(":1: tp-size"));
  EXPECT_THAT(ErrorOf({"--config", WriteYaml("a: [\n")}), HasSubstr("args.yaml"));
}

TEST(ArgsTest, OneBatchProfilesWithAndWithoutADirectory) {
  const auto parse = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--model-path", "/m"});
    return *ParseOneBatch(more);
  };
  EXPECT_FALSE(parse({}).profile);
  const std::vector<std::vector<std::string>> without_value = {{"--profile"},
                                                               {"--profile", "--repeat", "2"}};
  for (const auto& words : without_value) {
    EXPECT_TRUE(parse(words).profile);
    EXPECT_EQ(parse(words).profile_dir, "");
  }
  EXPECT_TRUE(parse({"--profile", "/d"}).profile);
  EXPECT_EQ(parse({"--profile", "/d"}).profile_dir, "/d");
}

TEST(ArgsTest, OneBatchTakesLists) {
  const auto a =
      ParseOneBatch({"--model-path", "/m", "--batch-size", "1", "8", "--input-len", "128"});
  ASSERT_TRUE(a);
  EXPECT_EQ(a->batch_sizes, (std::vector<int32_t>{1, 8}));
  EXPECT_EQ(a->input_lengths, std::vector<int32_t>{128});
  EXPECT_FALSE(a->expert_skew);
  EXPECT_EQ(ParseOneBatch({"--model-path", "/m", "--expert-skew", "0"})->expert_skew, 0.0);
  EXPECT_THROW(ParseOneBatch({"--model-path", "/m", "--expert-skew", "-1"}), Error);
}

}  // namespace
}  // namespace switchyard
