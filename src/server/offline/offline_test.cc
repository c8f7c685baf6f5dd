// Calls of an engine in this process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/offline/engine.h"

namespace switchyard::offline {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::vector<std::string> Words(const std::string& fixture,
                               const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {
      "--model-path",       std::string(SWITCHYARD_TEST_DATA "/fixtures/") + fixture,
      "--device",           "cpu",
      "--cpu-bind",         "none",
      "--max-total-tokens", "2048",
      "--log-level",        "error"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string Body(const Json& more = Json::object()) {
  Json body = {
      {"input_ids", {5, 6, 7}},
      {"sampling_params", {{"temperature", 0}, {"max_new_tokens", 6}, {"ignore_eos", true}}}};
  body.update(more);
  return body.dump();
}

std::vector<Result> Finish(GenerateCall& call) {
  while (!call.Wait(60s)) {
  }
  return call.Take();
}

std::string Answer(RouteCall& call) {
  std::string body;
  while (!call.done()) {
    if (call.Wait(60s)) body += call.Take();
  }
  return body;
}

template <typename Function>
std::string ErrorOf(ErrorKind kind, Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(OfflineEngineTest, UpdatedWeightsGiveTheOutputsOfAFreshEngine) {
  const std::vector<std::string> flags = {"--tp", "2", "--ep", "2", "--moe-a2a-backend", "deepep"};
  const auto ids = [](Engine& engine) {
    const auto call = engine.Generate(Body());
    return Finish(*call)[0].output_ids;
  };
  std::vector<int32_t> want;
  {
    Engine engine(Words("qwen3_moe", flags));
    want = ids(engine);
  }
  std::vector<std::string> dummy = flags;
  dummy.insert(dummy.end(), {"--load-format", "dummy"});
  Engine engine(Words("qwen3_moe", dummy));
  const std::vector<int32_t> before = ids(engine);
  EXPECT_NE(before, want);
  const auto ask = [&](const char* path, const Json& body) {
    return Answer(*engine.Request("POST", path, body.dump()));
  };
  const std::string fixtures = SWITCHYARD_TEST_DATA "/fixtures/";
  EXPECT_THAT(ErrorOf(ErrorKind::kInvalid,
                      [&] {
                        ask("/update_weights_from_disk", {{"model_path", fixtures + "olmoe"}});
                      }),
              HasSubstr("the configuration of the new weights differs from the present one"));
  EXPECT_EQ(ids(engine), before);
  ask("/update_weights_from_disk",
      {{"model_path", fixtures + "qwen3_moe"}, {"weight_version", "7"}});
  EXPECT_EQ(ids(engine), want);
  ask("/release_memory_occupation", Json::object());
  const auto waits = engine.Generate(Body());
  EXPECT_FALSE(waits->Wait(20ms));
  ask("/resume_memory_occupation", {{"tags", {"weights"}}});
  ask("/release_memory_occupation", {{"tags", {"kv_cache"}}});
  EXPECT_FALSE(waits->HasNews());
  ask("/resume_memory_occupation", {{"tags", {"kv_cache"}}});
  EXPECT_EQ(Finish(*waits)[0].output_ids, want);
  EXPECT_THAT(Answer(*engine.Request("GET", "/get_weight_version", "")), HasSubstr("7"));
  ask("/release_memory_occupation", Json::object());  // the destructor ends an engine without ranks
}

TEST(OfflineEngineTest, OutputsAreThoseOfOneRankOnAnyNumberOfRanks) {
  std::vector<std::vector<int32_t>> ids;
  const std::pair<const char*, const char*> layouts[] = {{"1", "1"}, {"2", "1"}, {"1", "2"}};
  for (const auto& [ranks, stages] : layouts) {
    Engine engine(Words("qwen3_moe", {"--tp", ranks, "--ep", ranks, "--moe-a2a-backend", "deepep",
                                      "--pp-size", stages, "--dtype", "float32"}));
    const auto call = engine.Generate(Body());
    EXPECT_TRUE(call->single());
    const auto results = Finish(*call);
    ASSERT_EQ(results.size(), 1u);
    EXPECT_TRUE(results[0].finished && call->done());
    const Json meta = Json::parse(results[0].meta_info);
    EXPECT_EQ(meta["prompt_tokens"], 3);
    EXPECT_EQ(meta["completion_tokens"], 6);
    EXPECT_EQ(meta["finish_reason"]["type"], "length");
    ids.push_back(results[0].output_ids);
  }
  EXPECT_EQ(ids[0].size(), 6u);
  EXPECT_THAT(ids, ::testing::Each(ids[0]));
}

TEST(OfflineEngineTest, AStreamHasTheOutputSoFarInEachResult) {
  Engine engine(Words("qwen3_moe"));
  const auto notifier = std::make_shared<Notifier>();
  const auto whole = Finish(*engine.Generate(Body()));
  const auto call = engine.Generate(Body({{"stream", true}}), notifier);
  std::vector<int32_t> last;
  while (!call->done()) {
    pollfd wait = {.fd = notifier->fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&wait, 1, 60'000), 1);
    EXPECT_EQ(notifier->Take(), std::vector<uint64_t>{call->number()});
    for (const Result& result : call->Take()) {
      ASSERT_GE(result.output_ids.size(), last.size());
      EXPECT_TRUE(std::equal(last.begin(), last.end(), result.output_ids.begin()));
      last = result.output_ids;
    }
  }
  EXPECT_EQ(last, whole[0].output_ids);
}

TEST(OfflineEngineTest, LogprobsAndExpertsAreArrays) {
  Engine engine(Words("qwen3_moe"));
  const auto results = Finish(*engine.Generate(Body({{"return_logprob", true},
                                                     {"logprob_start_len", 0},
                                                     {"top_logprobs_num", 2},
                                                     {"token_ids_logprob", {9, 8, 7}},
                                                     {"return_routed_experts", true}})));
  const Logprobs& input = results[0].input_logprobs.value();
  const Logprobs& output = results[0].output_logprobs.value();
  EXPECT_EQ(input.tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_TRUE(std::isnan(input.values[0]) && !std::isnan(input.values[1]));
  EXPECT_EQ(input.top_tokens.size(), 6u);
  EXPECT_EQ(input.top_tokens[0], -1);
  EXPECT_EQ(output.tokens, results[0].output_ids);
  EXPECT_EQ(output.top_values.size(), 12u);
  EXPECT_EQ(output.top_tokens[0], output.tokens[0]);  // greedy
  EXPECT_FLOAT_EQ(output.top_values[0], output.values[0]);
  EXPECT_EQ(output.requested_tokens[4], 8);
  const RoutedExperts& experts = results[0].routed_experts.value();
  EXPECT_EQ(std::ssize(experts.ids), (3 + 6 - 1) * experts.layers * experts.top_k);
}

TEST(OfflineEngineTest, EveryRouteOfTheServerCanBeCalled) {
  Engine engine(Words("qwen3_moe"));
  const Json info = Json::parse(Answer(*engine.Request("GET", "/get_server_info", "")));
  EXPECT_EQ(info["tp_size"], 1);
  const Json scores = Json::parse(
      Answer(*engine.Request("POST", "/v1/score",
                             R"({"query": [5, 6], "items": [[7], [8]], "label_token_ids": [1, 2],
                                 "apply_softmax": true})")));
  ASSERT_EQ(scores["scores"].size(), 2u);
  EXPECT_NEAR(scores["scores"][0][0].get<double>() + scores["scores"][0][1].get<double>(), 1, 1e-5);
  const std::string stream = Answer(*engine.Request(
      "POST", "/generate",
      R"({"input_ids": [5], "sampling_params": {"max_new_tokens": 2}, "stream": true})"));
  EXPECT_THAT(stream, HasSubstr("data: [DONE]"));
  const auto refused = engine.Request("POST", "/generate", R"({"text": 1})");
  EXPECT_THAT(ErrorOf(ErrorKind::kInvalid, [&] { Answer(*refused); }), HasSubstr("text"));
  EXPECT_THAT(ErrorOf(ErrorKind::kNotFound, [&] { engine.Request("GET", "/nowhere", ""); }),
              HasSubstr("there is no such route"));
}

TEST(OfflineEngineTest, UnknownFieldsAreRefused) {
  Engine engine(Words("qwen3_moe"));
  EXPECT_THAT(ErrorOf(ErrorKind::kInvalid,
                      [&] {
                        engine.Generate(Body({{"promt", 1}}));
                      }),
              HasSubstr("promt is unknown"));
  EXPECT_THAT(
      ErrorOf(ErrorKind::kInvalid,
              [&] { engine.Generate(R"({"input_ids": [1], "sampling_params": {"topk": 3}})"); }),
      HasSubstr("topk is unknown"));
  EXPECT_THAT(ErrorOf(ErrorKind::kInvalid,
                      [&] {
                        engine.Generate(Body({{"lora_path", "adapter"}}));
                      }),
              HasSubstr("lora_path"));
}

TEST(OfflineEngineTest, FlagsOfTheNetworkAndOfProcessesAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--port", "1234"}, "--port: an engine in this process serves no HTTP"},
      {{"--nnodes", "2"}, "--nnodes: an engine in this process has ranks on this host only"},
      {{"--enable-elastic-ep"}, "--enable-elastic-ep: the ranks"},
      {{"--max-rank-deaths", "3/60"}, "--max-rank-deaths: the ranks"},
      {{"--spare-ranks", "1"}, "--spare-ranks: the ranks"},
      {{"--disaggregation-mode", "decode"}, "--disaggregation-mode decode: prefill and decode"},
      {{"--disable-page"}, "--disable-page: an engine in this process serves no HTTP"},
      {{"--dry-run"}, "--dry-run"},
      {{"--print-schedule"}, "--print-schedule"},
      {{"--pot", "1"}, "--pot"}};
  for (const auto& c : cases)
    EXPECT_THAT(
        ErrorOf(ErrorKind::kInvalid, [&] { const Engine engine(Words("qwen3_moe", c.first)); }),
        HasSubstr(c.second));
}

TEST(OfflineEngineTest, ShutdownAbortsOpenCallsAndRefusesNewOnes) {
  Engine engine(Words("qwen3_moe"));
  const auto call = engine.Generate(
      R"({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 1000, "ignore_eos": true}})");
  engine.Shutdown();
  const auto results = Finish(*call);
  EXPECT_EQ(Json::parse(results[0].meta_info)["finish_reason"]["type"], "abort");
  EXPECT_THAT(ErrorOf(ErrorKind::kUnavailable, [&] { engine.Generate(Body()); }),
              HasSubstr("has been shut down"));
  engine.Shutdown();
}

TEST(OfflineEngineTest, LoadingCanBeInterrupted) {
  std::atomic<int> polls{0};
  EXPECT_THROW(Engine(Words("qwen3_moe"), [&] { return ++polls > 0; }), Interrupted);
}

TEST(OfflineEngineTest, ErrorsKeepTheirHints) {
  const auto hint_of = [](const auto& function) {
    try {
      function();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(" (" + error.hint() + ")"));
      return error.hint();
    }
    return std::string("no error");
  };
  Engine engine(Words("qwen3_moe", {"--max-queued-requests", "1", "--max-running-requests", "1"}));
  std::vector<std::unique_ptr<GenerateCall>> calls;
  calls.reserve(2);
  const std::string body =
      Body({{"sampling_params", {{"max_new_tokens", 400}, {"ignore_eos", true}}}});
  for (int i = 0; i < 2; ++i) calls.push_back(engine.Generate(body));
  EXPECT_EQ(hint_of([&] { engine.Generate(body); }), "try again later");
  EXPECT_EQ(hint_of([&] { Answer(*engine.Request("POST", "/generate", body)); }),
            "try again later");
}

TEST(OfflineEngineTest, AForkedProcessIsRefusedAndEnds) {
  Engine engine(Words("qwen3_moe"));
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      engine.Generate(Body());
    } catch (const Error& error) {
      refused = error.kind() == ErrorKind::kUnavailable;
    }
    engine.Shutdown();
    _exit(refused ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace switchyard::offline
