// Outputs of whole engines with pipeline stages equal those of one stage, bit by bit.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <vector>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "core/test_effort.h"
#include "engine/machine.h"
#include "engine/pipeline/stage_links.h"
#include "engine/test_engine.h"
#include "engine/test_grammars.h"
#include "model/test_eagle.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* fixture;
  MeshShape mesh;
  const char* backend = "none";
  const char* mode = "auto";
  const char* dtype = "float32";
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.fixture << " pp" << c.mesh.pp << " tp" << c.mesh.tp << " ep" << c.mesh.ep << " dp"
             << c.mesh.dp << " " << c.backend;
}

EngineConfig ConfigFor(const Case& c) {
  EngineConfig config = ConfigOf(c.fixture, c.mesh);
  config.dtype = c.dtype;
  config.moe.a2a_backend = c.backend;
  config.moe.deepep_mode = c.mode;
  config.moe.max_dispatch_tokens_per_rank = 8;
  config.disable_jump_forward = true;  // as with several stages
  return config;
}

EngineConfig OneStage(EngineConfig config) {
  config.mesh.pp = 1;
  config.pp_layer_partition.clear();
  config.pp_max_micro_batch_size = config.pp_async_batch_depth = 0;
  config.dynamic_chunking = false;
  return config;
}

class PipelineEngine : public ::testing::TestWithParam<Case> {};

TEST_P(PipelineEngine, GivesTheOutputsOfOneStage) {
  constexpr uint64_t kRequests = FewerIfSanitized(28);
  const EngineConfig config = ConfigFor(GetParam());
  Outputs want;
  {
    Engine plain(OneStage(config));
    DefineGrammars(plain);
    want = RunAll(plain, kRequests, Constrained);
  }
  Engine engine(config);
  DefineGrammars(engine);
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
  const EngineStats first = Total(engine.Stats());
  // The second time, prompts are in the cache.
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
  const EngineStats second = Total(engine.Stats());
  EXPECT_GT(second.cached_prompt_tokens, first.cached_prompt_tokens);
  EXPECT_TRUE(engine.FlushCache());
}

class PipelineLimits : public ::testing::TestWithParam<Case> {};

TEST_P(PipelineLimits, DoNotChangeOutputs) {
  constexpr uint64_t kRequests = 12;
  EngineConfig config = ConfigFor(GetParam());
  Outputs want;
  {
    Engine plain(OneStage(config));
    want = RunAll(plain, kRequests);
  }
  config.pp_max_micro_batch_size = 2;
  config.pp_async_batch_depth = 1;
  config.dynamic_chunking = true;
  Engine engine(config);
  ExpectEqual(RunAll(engine, kRequests), want);
}

// Drafts from the requests' own text are verified by all stages.
class PipelineDrafts : public ::testing::TestWithParam<Case> {};

TEST_P(PipelineDrafts, DoNotChangeOutputs) {
  constexpr uint64_t kRequests = FewerIfSanitized(20);
  EngineConfig config = ConfigFor(GetParam());
  Outputs want;
  {
    Engine plain(OneStage(config));
    DefineGrammars(plain);
    want = RunAll(plain, kRequests, Constrained);
  }
  config.speculative.algorithm = "NGRAM";
  Engine engine(config);
  EXPECT_FALSE(engine.plan().drafts.adapts);
  DefineGrammars(engine);
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
  EXPECT_GT(Total(engine.Stats()).accepted_tokens, 0);
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
  EXPECT_TRUE(engine.FlushCache());
}

// Two stages of all fixtures, and one layer for each stage. Most fixtures have two or three layers.
INSTANTIATE_TEST_SUITE_P(
    Fixtures, PipelineEngine,
    ::testing::Values(Case{"mixtral", {.pp = 2}}, Case{"olmoe", {.pp = 2}},
                      Case{"llama", {.pp = 2}}, Case{"qwen3", {.pp = 2}},
                      Case{"deepseek_v3_fp8", {.pp = 2}}, Case{"qwen2_moe", {.pp = 2}},
                      Case{"qwen2_moe", {.pp = 3}}, Case{"qwen3_moe", {.pp = 2}},
                      Case{"qwen3_moe", {.pp = 3}}, Case{"deepseek_v2", {.pp = 2}},
                      Case{"deepseek_v2", {.pp = 3}}, Case{"deepseek_v3", {.pp = 2}},
                      Case{"deepseek_v3", {.pp = 3}}, Case{"glm4_moe", {.pp = 2}},
                      Case{"glm4_moe", {.pp = 3}}, Case{"gpt_oss", {.pp = 2}},
                      Case{"gpt_oss", {.pp = 4}, "none", "auto", "bfloat16"}));

// Models with four layers. Each stage has one of them.
INSTANTIATE_TEST_SUITE_P(FourStages, PipelineEngine,
                         ::testing::Values(Case{"yardling", {.pp = 4}},
                                           Case{"../families/afmoe", {.pp = 4}},
                                           Case{"../families/exaone_moe", {.pp = 4}},
                                           Case{"../families/ernie4_5_moe_sparse", {.pp = 4}},
                                           Case{"../families/mimo_v2_flash", {.pp = 4}},
                                           Case{"../families/llama4_text", {.pp = 4}}));

// With recurrent states. Some stages have no layer with states, others none with keys.
INSTANTIATE_TEST_SUITE_P(
    States, PipelineEngine,
    ::testing::Values(Case{"../families/qwen3_next", {.pp = 4}},
                      Case{"../families/qwen3_5_moe", {.pp = 4}},
                      Case{"../families/kimi_linear", {.tp = 2, .ep = 2, .pp = 2}, "deepep"},
                      Case{"../families/bailing_hybrid", {.tp = 2, .ep = 2, .pp = 2}, "deepep"},
                      Case{"../families/nemotron_h_latent", {.pp = 3}}));

// With several residual streams. One layer per stage: the second stage routes by token ids, the
// first one has no compressed entries, and states of blocks would have different sizes.
INSTANTIATE_TEST_SUITE_P(Streams, PipelineEngine,
                         ::testing::Values(Case{"../families/deepseek_v4", {.pp = 4}},
                                           Case{"../families/deepseek_v4_plain",
                                                {.tp = 2, .ep = 2, .pp = 2},
                                                "deepep"}));

INSTANTIATE_TEST_SUITE_P(
    Layouts, PipelineEngine,
    ::testing::Values(
        Case{"qwen3_moe", {.tp = 2, .ep = 2, .pp = 2}, "deepep"},
        Case{"qwen3_moe", {.tp = 2, .ep = 1, .pp = 3}, "none"},
        Case{"qwen3_moe", {.tp = 2, .ep = 2, .dp = 2, .pp = 2}, "deepep", "low_latency"},
        Case{"deepseek_v3", {.tp = 2, .ep = 2, .dp = 2, .pp = 3}, "deepep"},
        Case{"deepseek_v3", {.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1, .pp = 2}, "flashinfer"},
        Case{"deepseek_v3", {.tp = 4, .ep = 2, .dp = 2, .pp = 2}, "deepep"},
        Case{"deepseek_v3", {.tp = 2, .ep = 2, .pp = 2}, "mooncake"},
        Case{"gpt_oss", {.tp = 2, .ep = 2, .pp = 4}, "fused"}, Case{"llama", {.tp = 2, .pp = 2}}));

INSTANTIATE_TEST_SUITE_P(
    Layouts, PipelineDrafts,
    ::testing::Values(Case{"qwen3_moe", {.pp = 3}}, Case{"llama", {.tp = 2, .pp = 2}},
                      Case{"deepseek_v3", {.tp = 2, .ep = 2, .dp = 2, .pp = 2}, "deepep"}));

// Drafts of a model, which is on the last stage. `drafts`: the algorithm. STANDALONE takes
// `draft_model`, and EAGLE a head with random weights.
struct DraftCase {
  Case target;
  const char* algorithm;
  const char* draft_model = "";
};

std::ostream& operator<<(std::ostream& out, const DraftCase& c) {
  return out << c.target << " " << c.algorithm << " " << c.draft_model;
}

class PipelineDraftModel : public ::testing::TestWithParam<DraftCase> {};

TEST_P(PipelineDraftModel, DoesNotChangeOutputs) {
  constexpr uint64_t kRequests = 20;
  EngineConfig config = ConfigFor(GetParam().target);
  Outputs want;
  {
    Engine plain(OneStage(config));
    DefineGrammars(plain);
    want = RunAll(plain, kRequests, Constrained);
  }
  config.speculative = {.algorithm = GetParam().algorithm, .num_steps = "3"};
  const testing::TempDir dir;
  if (*GetParam().draft_model) {
    config.speculative.draft_model_path = Fixture(GetParam().draft_model).string();
  } else if (config.speculative.algorithm == "EAGLE") {
    testing::WriteEagleHead(dir.path(), {.inner_rows = false, .layer = "layers.0."},
                            ReadModelConfig(config));
    config.speculative.draft_model_path = dir.path().string();
  }
  Engine engine(config);
  EXPECT_FALSE(engine.plan().drafts.adapts);
  DefineGrammars(engine);
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
  EXPECT_GT(Total(engine.Stats()).drafted_tokens, 0);
  ExpectEqual(RunAll(engine, kRequests, Constrained), want);
  EXPECT_TRUE(engine.FlushCache());
}

// With a copy of the target as the draft model, each draft is right, as without stages.
TEST(Pipeline, ACopyOfTheTargetOnTheLastStageIsAlwaysRight) {
  EngineConfig config = ConfigOf("deepseek_v3", {.pp = 3});
  config.speculative = {.algorithm = "STANDALONE",
                        .num_steps = "3",
                        .draft_model_path = Fixture("deepseek_v3").string()};
  Engine engine(config);
  for (int32_t i = 0; i < 4; ++i) {
    EngineRequest request{.input_ids = std::vector<int32_t>(30, 3 + i)};
    request.sampling = {
        .max_new_tokens = 41, .temperature = i % 2 ? 1.0f : 0.0f, .seed = 7, .ignore_eos = true};
    EXPECT_EQ(engine.Generate(request).new_tokens.size(), 41u);
  }
  const EngineStats stats = Total(engine.Stats());
  EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
  EXPECT_EQ(stats.accepted_tokens, 4 * 30);  // each request has 10 steps of 3 drafts
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, PipelineDraftModel,
    ::testing::Values(
        DraftCase{{"deepseek_v3", {.pp = 3}}, "NEXTN"},
        DraftCase{{"deepseek_v3", {.tp = 2, .ep = 2, .dp = 2, .pp = 2}, "deepep"}, "NEXTN"},
        DraftCase{{"yardling", {.pp = 2}}, "NEXTN"},
        DraftCase{{"qwen3_moe", {.tp = 2, .ep = 2, .pp = 2}, "deepep"}, "EAGLE"},
        DraftCase{{"llama", {.pp = 2}}, "EAGLE"},
        DraftCase{
            {"deepseek_v3", {.tp = 2, .ep = 2, .pp = 3}, "deepep"}, "STANDALONE", "qwen2_moe"}));

INSTANTIATE_TEST_SUITE_P(
    Layouts, PipelineLimits,
    ::testing::Values(Case{"qwen3_moe", {.pp = 3}}, Case{"../families/deepseek_v4", {.pp = 3}},
                      Case{"deepseek_v3", {.tp = 2, .ep = 2, .dp = 2, .pp = 2}, "deepep"}));

// Aborts while prompts are computed and while tokens are sampled.
TEST(Pipeline, AbortsEndRequestsOnAllStages) {
  EngineConfig config = ConfigOf("deepseek_v3", {.tp = 2, .ep = 2, .dp = 2, .pp = 3});
  Engine engine(config);
  const auto vocab = static_cast<int32_t>(engine.plan().model.vocab_size);
  constexpr uint64_t kRequests = 30;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t finished = 0, aborted = 0;
  for (uint64_t i = 0; i < kRequests; ++i) {
    EngineRequest request = RequestOf(i, vocab);
    request.sampling.max_new_tokens = 40;
    request.sampling.stop_token_ids.clear();
    const uint64_t id = engine.Submit(request, [&](const RequestOutput& news) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(news.error, "");
      if (news.finish != FinishReason::kNone) ++finished;
      if (news.finish == FinishReason::kAbort) ++aborted;
      changed.notify_all();
    });
    if (i % 3 == 0) engine.Abort(id);
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return finished == kRequests; });
    EXPECT_GT(aborted, 0u);
  }
  EXPECT_TRUE(engine.FlushCache());
  for (const EngineStats& group : engine.Stats()) EXPECT_EQ(group.free_pages, group.total_pages);
}

// Profiles start and end with a collective of all stages, here while passes are in flight.
TEST(Pipeline, ProfilesDoNotChangeOutputs) {
  constexpr uint64_t kRequests = 12;
  const TemporaryDirectory directory;
  Engine engine(ConfigOf("qwen3_moe", {.tp = 2, .ep = 2, .pp = 3}));
  const Outputs want = RunAll(engine, kRequests);
  const auto request = [&](uint64_t i, int32_t vocab) {
    if (i == 4)
      engine.Tell(StartProfile{.options = {.dir = directory.path().string(), .name = "run"}});
    if (i == 8) engine.Tell(StopProfile{});
    return RequestOf(i, vocab);
  };
  ExpectEqual(RunAll(engine, kRequests, request), want);
  EXPECT_TRUE(engine.FlushCache());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 6);
}

// Log-probabilities are sent to one rank of each attention group only.
TEST(Pipeline, LogProbabilitiesOfPromptsAreThoseOfOneStage) {
  EngineConfig config = ConfigOf("deepseek_v3", {.tp = 2, .ep = 2, .dp = 2, .pp = 3});
  config.pp_async_batch_depth = 1;
  const auto logprobs = [](Engine& engine, int32_t i) {
    EngineRequest request{.input_ids = std::vector<int32_t>(60, 3 + i)};
    request.sampling.max_new_tokens = 3;
    request.sampling.temperature = 0;
    request.logprob = {.enabled = true, .start = 0, .top = 256};
    return engine.Generate(request).input_logprobs;
  };
  Engine plain(OneStage(config)), engine(config);
  for (int32_t i = 0; i < 4; ++i) {
    const std::vector<PositionLogprobs> want = logprobs(plain, i), got = logprobs(engine, i);
    ASSERT_EQ(got.size(), 60u);
    ASSERT_EQ(want.size(), got.size());
    for (size_t at = 1; at < want.size(); ++at) {
      EXPECT_EQ(got[at].logprob, want[at].logprob);
      ASSERT_EQ(got[at].top.size(), 256u);
      EXPECT_EQ(got[at].top.back().logprob, want[at].top.back().logprob);
    }
  }
}

// The first layer of deepseek_v3 has no experts, so the first stage has none either.
TEST(Pipeline, RoutedExpertsAreThoseOfOneStage) {
  for (const Case& c : {Case{"qwen3_moe", {.pp = 3}},
                        Case{"deepseek_v3", {.tp = 4, .ep = 2, .dp = 2, .pp = 3}, "deepep"}}) {
    const EngineConfig config = ConfigFor(c);
    const auto routed = [](Engine& engine, int32_t i) {
      EngineRequest request{.input_ids = std::vector<int32_t>(60, 3 + i)};
      request.sampling.max_new_tokens = 5;
      request.sampling.temperature = 0;
      request.routed_experts = {.enabled = true, .start = 7 * i};
      return engine.Generate(request).routed_experts;
    };
    Engine plain(OneStage(config)), engine(config);
    for (int32_t i = 0; i < 4; ++i) {
      const std::vector<int32_t> want = routed(plain, i);
      EXPECT_FALSE(want.empty());
      EXPECT_EQ(routed(engine, i), want);
    }
  }
}

std::string ErrorOfPlan(const EngineConfig& config) {
  try {
    MakePlan(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

TEST(PipelinePlan, RefusesWhatStagesDoNotSupportByName) {
  const EngineConfig good = ConfigOf("qwen3_moe", {.tp = 2, .ep = 2, .pp = 2});
  EXPECT_EQ(ErrorOfPlan(good), "");
  const auto error_of = [&](const auto& change) {
    EngineConfig config = good;
    change(config);
    return ErrorOfPlan(config);
  };
  EXPECT_EQ(error_of([](EngineConfig& c) { c.speculative.algorithm = "NGRAM"; }), "");
  EXPECT_THAT(error_of([](EngineConfig& c) {
                c.speculative = {.algorithm = "EAGLE3", .draft_model_path = "head"};
              }),
              HasSubstr("--speculative-algorithm EAGLE3: not supported with --pp-size 2"));
  EXPECT_THAT(error_of([](EngineConfig& c) {
                c.speculative = {
                    .algorithm = "NEXTN", .num_steps = "2", .eagle_topk = 2, .num_draft_tokens = 4};
              }),
              HasSubstr("--speculative-eagle-topk 2: not supported with --pp-size 2"));
  EXPECT_THAT(error_of([](EngineConfig& c) { c.two_batch_overlap = true; }),
              HasSubstr("--enable-two-batch-overlap: not supported with --pp-size 2"));
  EXPECT_EQ(error_of([](EngineConfig& c) { c.recorder.mode = "per_token"; }), "");
  EXPECT_THAT(error_of([](EngineConfig& c) { c.mesh.pp = 4; }),
              HasSubstr("--pp-size 4: the model has 3 layers"));
  EXPECT_THAT(error_of([](EngineConfig& c) { c.mesh.pp = 0; }), HasSubstr("--pp-size 0"));
  EXPECT_THAT(error_of([](EngineConfig& c) { c.pp_layer_partition = "2,2"; }),
              HasSubstr("--pp-layer-partition 2,2: the sum is 4, but the model has 3 layers"));
  EXPECT_THAT(error_of([](EngineConfig& c) { c.pp_layer_partition = "1,1,1"; }),
              HasSubstr("--pp-layer-partition 1,1,1: want 2 numbers"));
  for (const char* text : {"1,x", "1,,2", "1,2,", "12 3"})
    EXPECT_THAT(error_of([&](EngineConfig& c) { c.pp_layer_partition = text; }),
                HasSubstr("want numbers of layers"))
        << text;
  EXPECT_THAT(error_of([](EngineConfig& c) { c.pp_async_batch_depth = 17; }),
              HasSubstr("--pp-async-batch-depth 17: want 0 to 16"));
  EXPECT_THAT(error_of([](EngineConfig& c) { c.pp_max_micro_batch_size = -1; }),
              HasSubstr("--pp-max-micro-batch-size -1"));
  EXPECT_THAT(error_of([](EngineConfig& c) { c.target_step_ms = 30; }),
              HasSubstr("--target-step-ms 30: not supported with --pp-size 2"));
  EXPECT_THAT(error_of([](EngineConfig& c) {
                c.mesh.dp = 2;
                c.pp_max_micro_batch_size = 1;
              }),
              HasSubstr("--pp-max-micro-batch-size 1: want at least 1 for each attention group "
                        "(--dp-size 2)"));
  for (const int stages : {129, 1 << 30})
    EXPECT_THAT(error_of([&](EngineConfig& c) { c.mesh.pp = stages; }),
                HasSubstr(fmt::format("--pp-size {} with --tp-size 2 gives", stages)));
  ASSERT_EQ(setenv("SGLANG_PP_LAYER_PARTITION", "1,x", 1), 0);
  EXPECT_THAT(error_of([](EngineConfig& c) { c.pp_layer_partition = "1,x"; }),
              HasSubstr("SGLANG_PP_LAYER_PARTITION"));
  ASSERT_EQ(unsetenv("SGLANG_PP_LAYER_PARTITION"), 0);
  const auto error_alone = [&](const auto& change) {
    return error_of([&](EngineConfig& c) {
      c.mesh.pp = 1;
      change(c);
    });
  };
  EXPECT_THAT(error_alone([](EngineConfig& c) { c.pp_layer_partition = "1,2"; }),
              HasSubstr("has no effect without --pp-size 2"));
  EXPECT_THAT(error_alone([](EngineConfig& c) { c.pp_async_batch_depth = 1; }),
              HasSubstr("--pp-async-batch-depth 1 has no effect without --pp-size"));
  EXPECT_THAT(error_alone([](EngineConfig& c) { c.dynamic_chunking = true; }),
              HasSubstr("--enable-dynamic-chunking has no effect without --pp-size"));
  EXPECT_THAT(error_of([](EngineConfig& c) {
                c.dynamic_chunking = true;
                c.chunked_prefill_size = -1;
              }),
              HasSubstr("--enable-dynamic-chunking has no effect with --chunked-prefill-size -1"));
  EXPECT_THAT(error_alone([](EngineConfig& c) { c.pp_max_micro_batch_size = 4; }),
              HasSubstr("--pp-max-micro-batch-size 4 has no effect without --pp-size"));
}

TEST(PipelinePlan, MemoryIsThatOfTheStages) {
  EngineConfig config = ConfigOf("deepseek_v3", {});
  config.max_total_tokens = 4000;
  const EnginePlan whole = MakePlan(config);
  config.mesh.pp = 3;
  const EnginePlan plan = MakePlan(config);
  ASSERT_EQ(plan.stages.size(), 3u);
  EXPECT_EQ(plan.num_pages, whole.num_pages);
  // Each stage has one of three layers.
  EXPECT_EQ(3 * plan.kv_bytes_per_rank, whole.kv_bytes_per_rank);
  EXPECT_LT(plan.weight_bytes_per_rank, whole.weight_bytes_per_rank);
  EXPECT_GT(plan.symmetric_bytes_per_rank, whole.symmetric_bytes_per_rank);  // links of the stages
  for (int stage = 0; stage < 3; ++stage) {
    const ModelConfig model = StagePlanOf(config, plan, stage).model;
    EXPECT_EQ(model.num_layers(), 1);
    EXPECT_EQ(model.first_layer, stage);
  }
}

// Stages send all residual streams of a token.
TEST(PipelinePlan, LinksHoldTheStreamsOfTheLargestBatch) {
  for (const auto& [fixture, width] : {std::pair("qwen3_moe", 1), {"../families/deepseek_v4", 4}}) {
    const EngineConfig config = ConfigOf(fixture, {.pp = 2});
    const EnginePlan plan = MakePlan(config);
    EXPECT_EQ(
        StageLinkSizesOf(config, plan).rows_bytes,
        static_cast<size_t>(plan.max_batch_tokens * plan.model.hidden * width) * sizeof(float));
  }
}

TEST(PipelinePlan, TheCacheUsesTheMemoryOfAllStages) {
  EngineConfig config = ConfigOf("qwen3_moe", {.pp = 3});
  config.max_total_tokens = 0;
  config.max_running_requests = 4096;
  const ModelConfig model = ReadModelConfig(config);
  const Machine machine{.memory = {.total = int64_t{1} << 30, .available = int64_t{1} << 30},
                        .cpus = 4};
  const EnginePlan stages = MakePlanOn(machine, model, config, 3);
  // On three hosts, each one has the weights and pages of one stage only.
  EXPECT_GT(MakePlanOn(machine, model, config, 1).num_pages, 2 * stages.num_pages);
  config = OneStage(config);
  const EnginePlan whole = MakePlanOn(machine, model, config, 1);
  // Activations of three ranks and their links take a part of the memory.
  EXPECT_GT(stages.num_pages, whole.num_pages / 2);
  EXPECT_LE(stages.num_pages, whole.num_pages);
}

}  // namespace
}  // namespace switchyard
