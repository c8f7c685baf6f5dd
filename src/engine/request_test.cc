#include "engine/request.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "engine/config.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

template <typename F>
std::string ErrorOf(F&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

std::vector<ControlMessage> SomeControl() {
  EngineRequest request{.id = 77, .input_ids = {1, 2, 3}};
  request.sampling = {.max_new_tokens = 9,
                      .min_new_tokens = 2,
                      .temperature = 0.5f,
                      .top_p = 0.9f,
                      .top_k = 40,
                      .min_p = 0.1f,
                      .frequency_penalty = 0.3f,
                      .presence_penalty = -0.4f,
                      .repetition_penalty = 1.1f,
                      .seed = 123456789012345u,
                      .stop_token_ids = {5, 6},
                      .ignore_eos = true,
                      .logit_bias = {{3, 1.5f}, {4, -100.0f}},
                      .allowed_token_ids = {1, 2},
                      .bad_words = {{7}, {8, 9}}};
  request.logprob = {.enabled = true, .start = 4, .top = 5, .token_ids = {8}, .rank = true};
  request.routed_experts = {.enabled = true, .start = 2};
  request.group = 3;
  request.cache_salt = "salt";
  request.grammar = 13;
  request.output_ids = {11, 12};
  request.cached_tokens = 5;
  return {request,
          AbortRequest{4},
          FlushCache{5},
          GetStats{6},
          Shutdown{},
          EngineRequest{.id = 1},
          RecordExperts{.ticket = 7, .action = RecordAction::kDump},
          GetExpertLoad{8},
          RebalanceExperts{9},
          GetEplb{10},
          StartProfile{.ticket = 11,
                       .options = {.dir = "/d",
                                   .name = "n",
                                   .start_step = 3,
                                   .num_steps = 4,
                                   .host = false,
                                   .device = false,
                                   .by_stage = true,
                                   .record_shapes = true}},
          StopProfile{12},
          GrammarTokens{"tokens"},
          DefineGrammar{.id = 13, .bytes = "grammar"},
          DropGrammar{14},
          WantKv{16},
          SetControls{.ticket = 15,
                      .controls = {.paused = true,
                                   .step_delay_seconds = 0.25,
                                   .max_running_requests = 3,
                                   .max_micro_batch = 4},
                      .action = PauseAction::kAbort}};
}

std::vector<EngineMessage> SomeMessages() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  RequestOutput output{.id = 3,
                       .new_tokens = {9, 8},
                       .finish = FinishReason::kStop,
                       .matched = 8,
                       .prompt_tokens = 12,
                       .cached_tokens = 4,
                       .queue_seconds = 0.5f,
                       .next_drafts = {7, 6, 5},
                       .input_logprobs = {{.logprob = nan, .token = 1}},
                       .output_logprobs = {{.logprob = -1.5f,
                                            .token = 9,
                                            .top = {{9, -1.5f}, {2, -2.0f}},
                                            .requested = {{0, -7.0f}}}},
                       .routed_experts = {1, -1},
                       .error = "why"};
  return {LoadProgress{.done = 1, .total = 2},
          RankReady{.total_pages = 8, .page_size = 16, .max_running_requests = 3},
          StepOutputs{.outputs = {output, {}}},
          StatsReport{.ticket = 7, .groups = {{.running = 1, .free_pages = 5, .retractions = 2}}},
          FlushResult{.ticket = 8, .done = true},
          EngineFailure{"broken"},
          RecordResult{.ticket = 9,
                       .changed = true,
                       .dump = {.file = "/tmp/x",
                                .error = "why",
                                .steps = 2,
                                .layers = 1,
                                .experts = 2,
                                .logical_count = {3, 4}}},
          ExpertLoadReport{.ticket = 10,
                           .load = {.layers = 1,
                                    .experts = 2,
                                    .ranks = 1,
                                    .passes = 5,
                                    .recording = true,
                                    .balancedness = {0.5, 0.25, 0.75, 1.0},
                                    .rank_count = {7},
                                    .logical_count = {3, 4}},
                           .error = "none"},
          EplbReport{.ticket = 11,
                     .status = {.state = EplbState::kMoving,
                                .passes = 4,
                                .balancedness = 0.5,
                                .trigger = "shape",
                                .layer = 3,
                                .layers_done = 2,
                                .layers_to_move = 7,
                                .fills = {1, 2, 3},
                                .longest_switch_seconds = 0.25,
                                .last_failure = "why"},
                     .refused = "no"},
          ProfileReport{.ticket = 12,
                        .outcome = ProfileOutcome::kNotWritten,
                        .result = {.files = {"a", "b"}, .error = "c", .events = 5, .dropped = 6}},
          ControlsSet{.ticket = 13, .requests = 6},
          PlacementChanged{.ranks = 2, .slots = {1, 0, -1, -1}}};
}

TEST(RequestWire, ControlMessagesRoundTrip) {
  const std::string bytes = EncodeControl(SomeControl());
  const std::vector<ControlMessage> back = DecodeControl(bytes);
  ASSERT_EQ(back.size(), 17u);
  const auto& set = std::get<SetControls>(back[16]);
  EXPECT_EQ(set.ticket, 15u);
  EXPECT_EQ(set.controls, std::get<SetControls>(SomeControl()[16]).controls);
  EXPECT_EQ(set.action, PauseAction::kAbort);
  const auto& request = std::get<EngineRequest>(back[0]);
  EXPECT_EQ(request.input_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(request.sampling.seed, 123456789012345u);
  EXPECT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_EQ(request.sampling.logit_bias[1], (std::pair<int32_t, float>(4, -100.0f)));
  EXPECT_EQ(request.logprob.token_ids, std::vector<int32_t>{8});
  EXPECT_TRUE(request.routed_experts.enabled);
  EXPECT_EQ(request.routed_experts.start, 2);
  EXPECT_EQ(request.group, 3);
  EXPECT_EQ(request.cache_salt, "salt");
  EXPECT_EQ(request.grammar, 13u);
  EXPECT_EQ(request.sampling.bad_words, (std::vector<std::vector<int32_t>>{{7}, {8, 9}}));
  EXPECT_EQ(std::get<GetStats>(back[3]).ticket, 6u);
  EXPECT_FALSE(std::get<EngineRequest>(back[5]).sampling.seed.has_value());
  EXPECT_EQ(std::get<RecordExperts>(back[6]).action, RecordAction::kDump);
  EXPECT_EQ(std::get<RecordExperts>(back[6]).ticket, 7u);
  EXPECT_EQ(std::get<GetExpertLoad>(back[7]).ticket, 8u);
  EXPECT_EQ(std::get<RebalanceExperts>(back[8]).ticket, 9u);
  EXPECT_EQ(std::get<GetEplb>(back[9]).ticket, 10u);
  const auto& start = std::get<StartProfile>(back[10]);
  EXPECT_EQ(start.ticket, 11u);
  EXPECT_EQ(start.options.dir, "/d");
  EXPECT_EQ(start.options.name, "n");
  EXPECT_EQ(start.options.start_step, 3);
  EXPECT_EQ(start.options.num_steps, 4);
  EXPECT_FALSE(start.options.host || start.options.device);
  EXPECT_TRUE(start.options.by_stage && start.options.record_shapes);
  EXPECT_EQ(std::get<StopProfile>(back[11]).ticket, 12u);
  EXPECT_EQ(std::get<GrammarTokens>(back[12]).bytes, "tokens");
  EXPECT_EQ(std::get<DefineGrammar>(back[13]).id, 13u);
  EXPECT_EQ(std::get<DefineGrammar>(back[13]).bytes, "grammar");
  EXPECT_EQ(std::get<DropGrammar>(back[14]).id, 14u);
  EXPECT_EQ(std::get<WantKv>(back[15]).id, 16u);
  EXPECT_EQ(EncodeControl(back), bytes);
  EXPECT_TRUE(DecodeControl(EncodeControl({})).empty());
}

TEST(RequestWire, EngineMessagesRoundTrip) {
  for (const EngineMessage& message : SomeMessages()) {
    const std::string bytes = EncodeMessage(message);
    const EngineMessage back = DecodeMessage(bytes);
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(EncodeMessage(back), bytes);
  }
  const EngineMessage back = DecodeMessage(EncodeMessage(SomeMessages()[2]));
  const RequestOutput& output = std::get<StepOutputs>(back).outputs.at(0);
  EXPECT_EQ(output.finish, FinishReason::kStop);
  EXPECT_EQ(output.next_drafts, (std::vector<int32_t>{7, 6, 5}));
  EXPECT_TRUE(std::isnan(output.input_logprobs.at(0).logprob));
  EXPECT_EQ(output.output_logprobs.at(0).top.at(1).token, 2);
  EXPECT_EQ(output.routed_experts, (std::vector<int32_t>{1, -1}));
  EXPECT_EQ(output.error, "why");
  EXPECT_EQ(output.queue_seconds, 0.5f);
}

TEST(RequestWire, RecorderMessagesRoundTrip) {
  const EngineMessage record = DecodeMessage(EncodeMessage(SomeMessages()[6]));
  const auto& result = std::get<RecordResult>(record);
  EXPECT_TRUE(result.changed);
  EXPECT_EQ(result.dump.file, "/tmp/x");
  EXPECT_EQ(result.dump.logical_count, (std::vector<int64_t>{3, 4}));
  const EngineMessage report = DecodeMessage(EncodeMessage(SomeMessages()[7]));
  const ExpertLoad& load = std::get<ExpertLoadReport>(report).load;
  EXPECT_EQ(load.balancedness.last_100, 0.75);
  EXPECT_EQ(load.rank_count, std::vector<int64_t>{7});
  EXPECT_EQ(load.passes, 5);
}

TEST(RequestWire, RebalancingMessagesRoundTrip) {
  const EngineMessage message = DecodeMessage(EncodeMessage(SomeMessages()[8]));
  const auto& report = std::get<EplbReport>(message);
  EXPECT_EQ(report.ticket, 11u);
  EXPECT_EQ(report.refused, "no");
  EXPECT_EQ(report.status.state, EplbState::kMoving);
  EXPECT_EQ(report.status.layer, 3);
  EXPECT_EQ(report.status.layers_to_move, 7);
  EXPECT_EQ(report.status.fills, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(report.status.trigger, "shape");
  EXPECT_EQ(report.status.longest_switch_seconds, 0.25);
  EXPECT_EQ(report.status.last_failure, "why");
}

TEST(RequestWire, BytesThatEndEarlyOrLateAreRefused) {
  const std::string control = EncodeControl(SomeControl());
  for (size_t n = 0; n < control.size(); ++n)
    EXPECT_NE(ErrorOf([&] { DecodeControl(control.substr(0, n)); }), "") << n;
  EXPECT_NE(ErrorOf([&] { DecodeControl(control + "x"); }), "");
  for (const EngineMessage& message : SomeMessages()) {
    const std::string bytes = EncodeMessage(message);
    for (size_t n = 0; n < bytes.size(); ++n)
      EXPECT_NE(ErrorOf([&] { DecodeMessage(bytes.substr(0, n)); }), "");
    EXPECT_NE(ErrorOf([&] { DecodeMessage(bytes + "x"); }), "");
  }
}

TEST(RequestWire, ChangedBytesNeverDoMoreThanThrow) {
  for (const EngineMessage& message : SomeMessages()) {
    std::string bytes = EncodeMessage(message);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const char old = bytes[i];
      for (const int value : {0, 1, 5, 0x7f, 0x80, 0xff}) {
        bytes[i] = static_cast<char>(value);
        ErrorOf([&] { DecodeMessage(bytes); });
      }
      bytes[i] = old;
    }
  }
  EXPECT_THAT(ErrorOf([] { DecodeMessage("\x7f"); }), HasSubstr("127"));  // no such alternative
}

TEST(ConfigWire, EveryFieldRoundTrips) {
  const EngineConfig config{.model_path = "/models/x",
                            .dtype = "float16",
                            .load_format = "dummy",
                            .mesh = {.tp = 4, .ep = 2},
                            .moe = {.a2a_backend = "deepep", .row_dtype = DType::kF16},
                            .context_length = 11,
                            .max_total_tokens = 12,
                            .mem_fraction_static = 0.5,
                            .page_size = 8,
                            .max_running_requests = 13,
                            .max_queued_requests = 14,
                            .chunked_prefill_size = -1,
                            .disable_radix_cache = true,
                            .threads_per_rank = 3,
                            .cpu_bind = "0-2|3-5",
                            .cpu_isa = "avx2",
                            .dist_timeout_seconds = 1.5,
                            .watchdog_timeout_seconds = 4.5,
                            .random_seed = 99,
                            .log_level = "debug",
                            .check_batches = true};
  const std::string bytes = EncodeConfig(config);
  const EngineConfig back = DecodeConfig(bytes);
  EXPECT_EQ(EncodeConfig(back), bytes);
  EXPECT_EQ(back.model_path, "/models/x");
  EXPECT_EQ(back.mesh.ep, 2);
  EXPECT_EQ(back.moe.row_dtype, DType::kF16);
  EXPECT_EQ(back.chunked_prefill_size, -1);
  EXPECT_EQ(back.cpu_bind, "0-2|3-5");
  EXPECT_EQ(back.watchdog_timeout_seconds, 4.5);
  EXPECT_EQ(back.log_level, "debug");
  EXPECT_TRUE(back.check_batches);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_NE(ErrorOf([&] { DecodeConfig(bytes.substr(0, n)); }), "");
}

TEST(Validate, NamesTheParameterAndItsRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto error = [](const SamplingParams& p) { return ErrorOf([&] { Validate(p, 100); }); };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({.max_new_tokens = 0, .temperature = 0, .top_p = 1, .top_k = 1, .min_p = 1}), "");
  EXPECT_THAT(error({.max_new_tokens = -1}), HasSubstr("max_new_tokens is -1"));
  EXPECT_THAT(error({.max_new_tokens = 3, .min_new_tokens = 4}), HasSubstr("min_new_tokens is 4"));
  for (const float bad : {-0.1f, nan, inf})
    EXPECT_THAT(error({.temperature = bad}), HasSubstr("temperature"));
  for (const float bad : {0.0f, -1.0f, 1.01f, nan})
    EXPECT_THAT(error({.top_p = bad}), HasSubstr("top_p"));
  for (const int bad : {0, -2}) EXPECT_THAT(error({.top_k = bad}), HasSubstr("top_k"));
  for (const float bad : {-0.1f, 1.1f, nan}) EXPECT_THAT(error({.min_p = bad}), HasSubstr("min_p"));
  for (const float bad : {-2.1f, 2.1f, nan}) {
    EXPECT_THAT(error({.frequency_penalty = bad}), HasSubstr("frequency_penalty"));
    EXPECT_THAT(error({.presence_penalty = bad}), HasSubstr("presence_penalty"));
  }
  for (const float bad : {0.0f, -1.0f, 2.1f, nan})
    EXPECT_THAT(error({.repetition_penalty = bad}), HasSubstr("repetition_penalty"));
  EXPECT_THAT(error({.stop_token_ids = {100}}), HasSubstr("stop_token_ids has token id 100"));
  EXPECT_THAT(error({.logit_bias = {{-1, 0.0f}}}), HasSubstr("logit_bias has token id -1"));
  EXPECT_THAT(error({.logit_bias = {{1, 101.0f}}}), HasSubstr("logit_bias is 101"));
  EXPECT_THAT(error({.allowed_token_ids = {1, 100}}), HasSubstr("allowed_token_ids has token id"));
  EXPECT_THAT(error({.bad_words = {{}}}), HasSubstr("bad_words has a word without tokens"));
  EXPECT_THAT(error({.bad_words = {{1}, {2, -1}}}), HasSubstr("bad_words has token id -1"));
  EXPECT_THAT(error({.bad_words = {std::vector<int32_t>(257, 1)}}), HasSubstr("257 tokens"));
  try {
    Validate(SamplingParams{.top_k = -5}, 100);
    FAIL();
  } catch (const ParameterError& e) {
    EXPECT_EQ(e.parameter, "top_k");
    EXPECT_EQ(e.what(), e.parameter + " " + e.problem);
  }
}

TEST(Validate, BoundsTheRequestedLogprobs) {
  const auto error = [](const LogprobParams& p) { return ErrorOf([&] { Validate(p, 100); }); };
  EXPECT_EQ(error({.enabled = true, .start = 0, .top = 100, .token_ids = {99}}), "");
  EXPECT_THAT(error({.start = -2}), HasSubstr("logprob_start_len"));
  EXPECT_THAT(error({.top = 101}), HasSubstr("top_logprobs"));
  EXPECT_THAT(error({.token_ids = {100}}), HasSubstr("token_ids_logprob"));
}

}  // namespace
}  // namespace switchyard
