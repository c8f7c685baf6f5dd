// Outputs of whole engines with speculative decoding equal those without.
#include <gmock/gmock.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "engine/engine.h"
#include "engine/sampler/random.h"
#include "moe/backends.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path Fixture(const std::string& name) {
  if (name == "yardling") return fs::path(SWITCHYARD_TEST_DATA) / "../../models/yardling";
  return fs::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

EngineConfig ConfigOf(const std::string& fixture, const MeshShape& mesh = {1, 1}) {
  EngineConfig config;
  config.model_path = Fixture(fixture);
  config.device = "cpu";
  config.dtype = "float32";
  config.mesh = mesh;
  config.max_total_tokens = 600;
  config.max_running_requests = 8 * mesh.dp;
  config.chunked_prefill_size = 12 * mesh.dp;
  config.page_size = 4;
  config.cpu_bind = "none";
  config.check_batches = true;
  return config;
}

// A number below `n` that depends on a request and on what it is for.
int32_t Below(uint64_t request, uint64_t what, int32_t n) {
  return static_cast<int32_t>(UniformDraw(request, what) * n);
}

EngineRequest RequestOf(uint64_t i, int32_t vocab) {
  EngineRequest request;
  const int32_t length = 2 + Below(i, 0, 30), period = 2 + Below(i, 1, 9);
  for (int32_t t = 0; t < length; ++t)
    request.input_ids.push_back(1 + Below(7 + i % 3, 100 + t % period, vocab - 1));
  SamplingParams& p = request.sampling;
  p.max_new_tokens = 1 + Below(i, 2, 30);
  p.temperature = Below(i, 3, 2) ? 0.8f : 0.0f;
  p.seed = i % 4;
  p.ignore_eos = true;
  if (Below(i, 4, 3) == 0) p.top_p = 0.9f;
  if (Below(i, 5, 3) == 0) p.repetition_penalty = 1.1f;
  if (Below(i, 6, 3) == 0) p.stop_token_ids = {1 + Below(i, 7, vocab - 1), 2};
  if (Below(i, 8, 3) == 0) request.logprob = {.enabled = true, .top = 2};
  return request;
}

using Outputs = std::map<uint64_t, RequestOutput>;

// All requests at once; so they are batched, and some wait or are retracted.
Outputs RunAll(Engine& engine, uint64_t count) {
  std::mutex mutex;
  std::condition_variable done;
  Outputs outputs;
  uint64_t finished = 0;
  const auto vocab = static_cast<int32_t>(engine.plan().model.vocab_size);
  for (uint64_t i = 0; i < count; ++i) {
    engine.Submit(RequestOf(i, vocab), [&, i](const RequestOutput& news) {
      const std::lock_guard lock(mutex);
      RequestOutput& all = outputs[i];
      all.new_tokens.insert(all.new_tokens.end(), news.new_tokens.begin(), news.new_tokens.end());
      all.output_logprobs.insert(all.output_logprobs.end(), news.output_logprobs.begin(),
                                 news.output_logprobs.end());
      all.finish = news.finish;
      all.error = news.error;
      if (news.finish == FinishReason::kNone) return;
      ++finished;
      done.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return finished == count; });
  return outputs;
}

void ExpectEqual(const Outputs& got, const Outputs& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [i, output] : want) {
    SCOPED_TRACE(fmt::format("request {}", i));
    const RequestOutput& other = got.at(i);
    EXPECT_EQ(other.error, "");
    EXPECT_EQ(other.new_tokens, output.new_tokens);
    EXPECT_EQ(other.finish, output.finish);
    ASSERT_EQ(other.output_logprobs.size(), output.output_logprobs.size());
    for (size_t t = 0; t < output.output_logprobs.size(); ++t)
      EXPECT_EQ(other.output_logprobs[t].logprob, output.output_logprobs[t].logprob);
  }
}

struct Case {
  const char* fixture;
  const char* algorithm;
  MeshShape mesh;
  const char* backend = "none";
  const char* mode = "auto";
  const char* draft_backend = "";
  const char* draft_model = "";
  const char* steps = "3";
};

class SpeculativeEngine : public ::testing::TestWithParam<Case> {};

TEST_P(SpeculativeEngine, GivesTheOutputsWithoutDrafts) {
  const Case& c = GetParam();
  EngineConfig config = ConfigOf(c.fixture, c.mesh);
  config.moe.a2a_backend = c.backend;
  config.moe.deepep_mode = c.mode;
  config.moe.max_dispatch_tokens_per_rank = 8;
  constexpr uint64_t kRequests = 24;
  Outputs want;
  {
    Engine plain(config);
    want = RunAll(plain, kRequests);
  }
  config.speculative.algorithm = c.algorithm;
  config.speculative.num_steps = c.steps;
  config.moe.speculative_a2a_backend = c.draft_backend;
  if (*c.draft_model) config.speculative.draft_model_path = Fixture(c.draft_model);
  Engine engine(config);
  ExpectEqual(RunAll(engine, kRequests), want);
  const EngineStats stats = Total(engine.Stats());
  EXPECT_GT(stats.drafted_tokens, 0);
  EXPECT_LE(stats.accepted_tokens, stats.drafted_tokens);
  // The second time, prompts are in the cache.
  ExpectEqual(RunAll(engine, kRequests), want);
}

constexpr MeshShape kDp2{.tp = 2, .ep = 2, .dp = 2};

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

// Generates from prompts without structure.
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

// A draft model that is the target guesses every token, also sampled ones: both models draw with
// the same random numbers.
TEST(SpeculativeEngineTest, TheTargetAsItsDraftModelIsAlwaysRight) {
  EngineConfig config = ConfigOf("deepseek_v3");
  config.speculative = {.algorithm = "STANDALONE",
                        .num_steps = "3",
                        .draft_model_path = Fixture("deepseek_v3").string()};
  for (const float temperature : {0.0f, 1.0f}) {
    const EngineStats stats = StatsOf(config, temperature);
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
    EXPECT_EQ(stats.accepted_tokens, 8 * 30);  // 40 tokens after the first, 4 in each step
  }
}

// The bundled model's MTP layer was trained with it. On prompts of random tokens, which it has
// never seen, it still guesses a part.
TEST(SpeculativeEngineTest, ATrainedMtpLayerGuessesManyTokens) {
  EngineConfig config = ConfigOf("yardling");
  config.speculative = {.algorithm = "NEXTN", .num_steps = "1"};
  const EngineStats stats = StatsOf(config, 0);
  EXPECT_GT(static_cast<double>(stats.accepted_tokens),
            0.25 * static_cast<double>(stats.drafted_tokens));
}

// The exchanges and runners of the layers in a rank's trace.
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
  const fs::path dir = fs::temp_directory_path() / fmt::format("draft_trace_{}", getpid());
  EngineConfig config = ConfigOf("deepseek_v3", {2, 2});
  config.speculative = {.algorithm = "NEXTN", .num_steps = "2"};
  config.moe.a2a_backend = "deepep";
  config.moe.runner_backend = "grouped_mlp";
  config.moe.speculative_a2a_backend = "flashinfer";
  config.moe.speculative_runner_backend = "masked_mlp";
  {
    Engine engine(config);
    engine.Tell(StartProfile{.options = {.dir = dir.string(), .name = "draft"}});
    RunAll(engine, 3);
    engine.Tell(StopProfile{});
    EXPECT_TRUE(engine.FlushCache());  // after the profile was written
  }
  const auto backends = BackendsOfTrace(dir);
  fs::remove_all(dir);
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
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-algorithm EAGLE3"));
  config.speculative = {.algorithm = "STANDALONE"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("needs --speculative-draft-model-path"));
  config.speculative.draft_model_path = Fixture("yardling");
  EXPECT_THAT(ErrorOf(config), HasSubstr("vocabulary"));
  config.speculative = {.algorithm = "NGRAM", .eagle_topk = 2};
  EXPECT_THAT(ErrorOf(config), HasSubstr("--speculative-eagle-topk 2"));
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

}  // namespace
}  // namespace switchyard
