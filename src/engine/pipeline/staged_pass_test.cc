// Engines of a pipeline's stages with several passes in flight, over a fake model.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/pipeline/test_stages.h"
#include "engine/scheduler/prefill.h"
#include "engine/speculative/ngram_drafter.h"
#include "engine/speculative/test_drafters.h"
#include "engine/test_rank_engine.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

class Draws {
 public:
  explicit Draws(uint32_t seed) : random_(seed) {}
  int32_t Below(int32_t n) { return std::uniform_int_distribution<int32_t>(0, n - 1)(random_); }

 private:
  std::mt19937 random_;
};

EngineRequest RandomRequest(Draws& draws, uint64_t id) {
  EngineRequest request{.id = id};
  const int32_t length = 1 + draws.Below(60), first = draws.Below(3) * 20;
  for (int32_t i = 0; i < length; ++i) request.input_ids.push_back((first + i) % 61);
  if (draws.Below(2)) request.input_ids[draws.Below(length)] = draws.Below(61);
  SamplingParams& p = request.sampling;
  p.max_new_tokens = draws.Below(30);
  p.temperature = draws.Below(3) ? 0.9f : 0.0f;
  p.seed = static_cast<uint64_t>(draws.Below(5));
  if (draws.Below(4) == 0) p.top_p = 0.8f;
  if (draws.Below(4) == 0) p.repetition_penalty = 1.2f;
  if (draws.Below(4) == 0) p.min_new_tokens = std::min(p.max_new_tokens, 5);
  p.ignore_eos = draws.Below(2);
  if (draws.Below(3) == 0)
    request.logprob = {.enabled = true, .start = draws.Below(length + 1) - 1, .top = 2};
  if (draws.Below(3) == 0)
    request.routed_experts = {.enabled = true, .start = draws.Below(length + 1)};
  return request;
}

void ExpectEqualLogprobs(const std::vector<PositionLogprobs>& got,
                         const std::vector<PositionLogprobs>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].token, want[i].token);
    if (std::isnan(want[i].logprob)) {
      EXPECT_TRUE(std::isnan(got[i].logprob));
    } else {
      EXPECT_EQ(got[i].logprob, want[i].logprob);
    }
  }
}

// kLastStage: only the last stage drafts, and its results have the drafts.
enum class Drafts : uint8_t { kNone, kOracle, kNgram, kLastStage };

// Random requests and aborts, with few pages, so that requests are retracted with passes in flight.
// `states`: slots of recurrent states.
void ExpectResultsOfRequestsAlone(bool launches, Drafts drafts = Drafts::kNone,
                                  int64_t states = 0) {
  for (const int passes : {2, 3, 5}) {
    for (const int64_t pages : {24, 60}) {
      SCOPED_TRACE(fmt::format("{} passes, {} pages", passes, pages));
      RankEngine::Options options = OptionsWith(pages, /*chunk=*/9, /*max_running=*/6);
      Rig alone(options);
      OracleDrafter oracle(0.7, 61);
      NgramDrafter ngram;
      if (drafts == Drafts::kOracle || drafts == Drafts::kLastStage) options.drafter = &oracle;
      options.results_have_drafts = drafts == Drafts::kLastStage;
      if (drafts == Drafts::kNgram) options.drafter = &ngram;
      options.max_drafts = options.drafter ? 3 : 0;
      options.num_states = states;
      Stages stages(options, passes, Pooling::kNone, launches);
      Draws draws(static_cast<uint32_t>(passes * 100 + pages));
      constexpr uint64_t kRequests = 120;
      std::map<uint64_t, bool> aborted;
      uint64_t next_id = 1;
      while (next_id <= kRequests || stages.last_engine.HasWork()) {
        std::vector<ControlMessage> messages;
        for (int32_t n = draws.Below(3); n > 0 && next_id <= kRequests; --n) {
          const EngineRequest request = RandomRequest(draws, next_id++);
          oracle.outputs[request.id] = alone.Run(request).new_tokens;
          messages.emplace_back(request);
        }
        if (draws.Below(8) == 0) {
          const auto id = 1 + static_cast<uint64_t>(draws.Below(static_cast<int32_t>(next_id)));
          const auto seen = stages.seen.find(id);
          if (id < next_id &&
              (seen == stages.seen.end() || seen->second.finish == FinishReason::kNone))
            aborted[id] = true;
          messages.emplace_back(AbortRequest{id});
        }
        stages.Tell(messages);
        stages.Step();
        ASSERT_FALSE(::testing::Test::HasFailure());
        ASSERT_LE(stages.first.most_rows, 9 + 6 * (1 + options.max_drafts));
      }
      stages.RunOut();
      EXPECT_TRUE(stages.last_engine.Stats().retractions > 0 || pages != 24);
      // On the last stage, passes with log-probabilities or penalties are not launched.
      EXPECT_EQ(stages.first.launched > 0, launches && drafts == Drafts::kNone);
      EXPECT_EQ(stages.last.launched > 0, launches && drafts == Drafts::kNone);
      const EngineStats first = stages.first_engine.Stats(), last = stages.last_engine.Stats();
      EXPECT_EQ(first.drafted_tokens > 0, drafts != Drafts::kNone);
      // The fake model's outputs hardly repeat, so few n-grams are right.
      EXPECT_TRUE(first.accepted_tokens > 0 || !options.drafter || drafts == Drafts::kNgram);
      EXPECT_EQ(first.drafted_tokens, last.drafted_tokens);
      EXPECT_EQ(first.verified_by_position, last.verified_by_position);
      EXPECT_EQ(first.accepted_by_position, last.accepted_by_position);
      EXPECT_TRUE(!launches || stages.last.passes_with_logits > 0);
      ASSERT_EQ(stages.seen.size(), kRequests);
      for (const auto& [id, want] : alone.seen) {
        SCOPED_TRACE(fmt::format("request {}", id));
        const RequestOutput& got = stages.seen[id];
        if (aborted.contains(id)) continue;
        EXPECT_EQ(got.error, "");
        EXPECT_EQ(got.finish, want.finish);
        EXPECT_EQ(got.new_tokens, want.new_tokens);
        ExpectEqualLogprobs(got.input_logprobs, want.input_logprobs);
        ExpectEqualLogprobs(got.output_logprobs, want.output_logprobs);
        EXPECT_EQ(got.routed_experts, want.routed_experts);
      }
    }
  }
}

TEST(StagedPass, GivesWhatEachRequestGetsAlone) { ExpectResultsOfRequestsAlone(false); }
TEST(StagedPass, LaunchedPassesGiveWhatEachRequestGetsAlone) { ExpectResultsOfRequestsAlone(true); }
TEST(StagedPass, DraftsDoNotChangeResults) {
  ExpectResultsOfRequestsAlone(false, Drafts::kOracle);
  ExpectResultsOfRequestsAlone(false, Drafts::kNgram);
  ExpectResultsOfRequestsAlone(false, Drafts::kLastStage);
}
TEST(StagedPass, RecurrentStatesFollowTheirSequences) {
  ExpectResultsOfRequestsAlone(false, Drafts::kNone, /*states=*/2 * 6 + 2);
  ExpectResultsOfRequestsAlone(true, Drafts::kNone, /*states=*/4 * 6 + 2);
}
// The state at the end of a page of the prompt becomes a checkpoint, though later chunks are in
// flight when its pass ends.
TEST(StagedPass, CachedPrefixesHaveStates) {
  RankEngine::Options options = OptionsWith(60, /*chunk=*/9, /*max_running=*/4);
  options.num_states = 4 * 4;
  for (const bool launches : {false, true}) {
    Stages stages(options, 3, Pooling::kNone, launches);
    for (uint64_t id = 1; id <= 2; ++id) {
      stages.Tell({Greedy(id, Count(42), 5)});
      stages.RunOut();
    }
    EXPECT_EQ(stages.seen[2].new_tokens, stages.seen[1].new_tokens);
    EXPECT_EQ(stages.last_engine.Stats().cached_prompt_tokens, 40);
    EXPECT_EQ(stages.first_engine.Stats().cached_prompt_tokens, 40);
  }
}
TEST(StagedPass, DraftsWhoseTokensTheModelSamplesDoNotChangeResults) {
  ExpectResultsOfRequestsAlone(true, Drafts::kOracle);
  ExpectResultsOfRequestsAlone(true, Drafts::kLastStage);
}

// The last stage launches a pass before it collects the one before, so its device does not wait for
// the host. With --disable-overlap-schedule it does not.
TEST(StagedPass, PassesAreLaunchedAhead) {
  for (const bool overlap : {true, false}) {
    RankEngine::Options options = OptionsWith(60, 64, 8);
    options.overlap_schedule = overlap;
    Stages stages(options, 2, Pooling::kNone, /*launches=*/true);
    for (uint64_t id = 1; id <= 4; ++id)
      stages.Tell({Greedy(id, {1, static_cast<int32_t>(id)}, 20)});
    stages.RunOut();
    EXPECT_EQ(stages.first.launched, overlap ? stages.first.passes : 0);
    EXPECT_EQ(stages.last.launched, overlap ? stages.last.passes : 0);
    EXPECT_EQ(stages.last.passes_with_logits, 0);  // the device samples in either case
  }
}

TEST(StagedPass, PooledPromptsGiveTheSameVectors) {
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
    const RankEngine::Options options = OptionsWith(40, /*chunk=*/7, /*max_running=*/4);
    Rig alone(options, 61, /*launches=*/false, pooling);
    Stages stages(options, 3, pooling);
    Draws draws(9);
    for (uint64_t id = 1; id <= 20; ++id) {
      EngineRequest request = RandomRequest(draws, id);
      request.logprob = {};
      request.routed_experts = {};
      request.sampling = {};
      request.sampling.max_new_tokens = 0;
      request.pooling = pooling;
      alone.Run(request);
      stages.Tell({request});
      if (draws.Below(2)) stages.Step();
    }
    stages.RunOut();
    for (const auto& [id, want] : alone.seen) EXPECT_EQ(stages.seen[id].pooled, want.pooled);
  }
}

// With mean pooling, a chunk of a prompt has many rows, but its result is a single vector.
TEST(StagedPass, ResultsOfPooledPromptsAreSmall) {
  const RankEngine::Options options = OptionsWith(40, /*chunk=*/32, /*max_running=*/4);
  Stages stages(options, 3, Pooling::kMean);
  EngineRequest request{.id = 1, .input_ids = Count(100)};
  request.sampling.max_new_tokens = 0;
  request.pooling = Pooling::kMean;
  stages.Tell({request});
  stages.RunOut();
  EXPECT_EQ(stages.seen[1].pooled.size(), 61u);
  EXPECT_LT(stages.last.most_bytes, 2 * 61 * sizeof(float) + 256);
  EXPECT_LE(stages.first.most_passed_on + 61 * sizeof(float), stages.last.most_bytes);
}

// A prompt is retracted between its chunks, while passes with its rows are in flight. The mean
// counts each row once.
TEST(StagedPass, MeansOfRetractedPromptsAreTheSame) {
  RankEngine::Options options = OptionsWith(40, /*chunk=*/7, /*max_running=*/1);
  options.priorities = true;
  options.preemption_threshold = 0;
  for (int steps = 1; steps <= 9; ++steps) {
    Rig alone(options, 61, /*launches=*/false, Pooling::kMean);
    Stages stages(options, 3, Pooling::kMean);
    for (uint64_t id = 1; id <= 2; ++id) {
      EngineRequest request{.id = id, .input_ids = Count(50, static_cast<int32_t>(id))};
      request.sampling.max_new_tokens = 0;
      request.pooling = Pooling::kMean;
      request.priority = static_cast<int32_t>(id);
      alone.Run(request);
      stages.Tell({request});
      if (id == 1)
        for (int step = 0; step < steps; ++step) stages.Step();
    }
    stages.RunOut();
    EXPECT_GT(stages.last_engine.Stats().retractions, 0);
    for (const auto& [id, want] : alone.seen) EXPECT_EQ(stages.seen[id].pooled, want.pooled);
  }
}

// Log-probabilities are sent only to the ranks that send answers. The others keep pace without.
TEST(StagedPass, OtherRanksGetNoLogProbabilities) {
  for (const bool sends : {true, false}) {
    const RankEngine::Options options = OptionsWith(40, /*chunk=*/16, /*max_running=*/4);
    Rig alone(options);
    Stages stages(options, 3);
    stages.last.sends_values_of_results = sends;
    for (uint64_t id = 1; id <= 4; ++id) {
      EngineRequest request = Greedy(id, Count(40, static_cast<int32_t>(id)));
      request.logprob = {.enabled = true, .start = 3, .top = 20};
      alone.Run(request);
      stages.Tell({request});
      stages.Step();
    }
    stages.RunOut();
    for (const auto& [id, want] : alone.seen) {
      EXPECT_EQ(stages.seen[id].new_tokens, want.new_tokens);
      ExpectEqualLogprobs(stages.seen[id].input_logprobs,
                          sends ? want.input_logprobs : std::vector<PositionLogprobs>());
    }
    EXPECT_EQ(stages.last.most_bytes > 2048, sends);
    EXPECT_LT(stages.first.most_passed_on, 2048u);
  }
}

// Only the last stage samples tokens. The budget of a rule is counted when a mask is filled, so the
// other stages fill masks too.
void ExpectGrammarsAreFollowed(bool launches, Drafts drafts = Drafts::kNone) {
  GrammarVocabulary vocabulary{.stop_ids = {7}};
  for (int32_t id = 0; id < 61; ++id)
    vocabulary.tokens.push_back(id == 7 ? "" : std::string(1 + id / 26, 'a' + id % 26));
  const TokenTable table(vocabulary);
  std::vector<ControlMessage> grammars = {GrammarTokens{vocabulary.Encode()}};
  for (const char* text : {"root ::= \"ab\" text \"cc\" text \"de\"\ntext[max_tokens=4] ::= [a-z]*",
                           "root ::= item item+\nitem ::= \"ab\" | \"ccc\" | \"x\""})
    grammars.push_back(
        DefineGrammar{grammars.size(), CompileGrammar(EbnfGrammar(text), table)->ToBytes()});
  RankEngine::Options options = OptionsWith(60, /*chunk=*/9, /*max_running=*/6);
  Rig alone(options);
  OracleDrafter oracle(0.8, 61);
  if (drafts != Drafts::kNone) options.drafter = &oracle;
  options.max_drafts = options.drafter ? 4 : 0;
  options.results_have_drafts = drafts == Drafts::kLastStage;
  Stages stages(options, 3, Pooling::kNone, launches);
  alone.Tell(grammars);
  stages.Tell(grammars);
  for (uint64_t id = 1; id <= 12; ++id) {
    EngineRequest request = Greedy(id, Count(5 + static_cast<int32_t>(id)), 16);
    request.sampling.temperature = 1;
    request.sampling.seed = id;
    request.grammar = 1 + id % 2;
    oracle.outputs[id] = alone.Run(request).new_tokens;
    stages.Tell({request});
    if (id % 3 == 0) stages.Step();
  }
  stages.RunOut();
  EXPECT_EQ(stages.first_engine.Stats().accepted_tokens > 0, drafts != Drafts::kNone);
  for (const auto& [id, want] : alone.seen) {
    EXPECT_EQ(want.error, "");
    EXPECT_EQ(stages.seen[id].error, "");
    EXPECT_EQ(stages.seen[id].new_tokens, want.new_tokens);
    EXPECT_EQ(stages.seen[id].finish, want.finish);
  }
}

TEST(StagedPass, GrammarsAreFollowedOnAllStages) { ExpectGrammarsAreFollowed(false); }
TEST(StagedPass, GrammarsConstrainTheTokensOfLaunchedPasses) { ExpectGrammarsAreFollowed(true); }
TEST(StagedPass, GrammarsConstrainTheTokensAfterDrafts) {
  for (const Drafts drafts : {Drafts::kOracle, Drafts::kLastStage}) {
    ExpectGrammarsAreFollowed(false, drafts);
    ExpectGrammarsAreFollowed(true, drafts);
  }
}

TEST(StagedPass, AFaultInARowOfADraftEndsTheOutputAfterTheTokensBeforeIt) {
  for (const int variant : {0, 1, 2, 3}) {
    const bool launches = variant % 2 == 1, in_results = variant >= 2;
    const EngineRequest request = Greedy(1, Count(6), 13);
    OracleDrafter oracle(1.0, 61);
    const Ids tokens = Rig{OptionsWith(60, 9, 6)}.Run(request).new_tokens;
    oracle.outputs[1] = tokens;
    Rig plain{OptionsWith(60, 9, 6)};
    plain.model.poison = tokens[3];
    const RequestOutput want = plain.Run(request);
    RankEngine::Options options = OptionsWith(60, 9, 6);
    options.drafter = &oracle;
    options.max_drafts = 5;
    options.results_have_drafts = in_results;
    Stages stages(options, 3, Pooling::kNone, launches);
    stages.first.poison = stages.last.poison = tokens[3];
    stages.Tell({request});
    stages.RunOut();
    EXPECT_EQ(stages.seen[1].finish, FinishReason::kError);
    EXPECT_EQ(stages.seen[1].error, want.error);
    EXPECT_EQ(stages.seen[1].new_tokens, want.new_tokens);
  }
}

// The collective that finds faults begins after the results of all passes in flight are received,
// because the last stage may wait for room to send them.
TEST(StagedPass, ResultsAreReceivedBeforeACollectiveOfAllStages) {
  for (const bool launches : {false, true}) {
    Stages stages(OptionsWith(60, /*chunk=*/4, 6), 4, Pooling::kNone, launches);
    stages.first.poison = stages.last.poison = 50;
    stages.first.router_fault = stages.last.router_fault = "a router failed";
    stages.first.left_at_collective = 99;
    for (uint64_t id = 1; id <= 6; ++id) {
      EngineRequest request = Greedy(id, {1, 2, static_cast<int32_t>(48 + id)}, 4);
      stages.Tell({request});
    }
    stages.RunOut();
    EXPECT_EQ(stages.first.left_at_collective, 0u);
    EXPECT_EQ(stages.seen[2].error, "a router failed");
    for (uint64_t id = 1; id <= 6; ++id)
      EXPECT_EQ(stages.seen[id].new_tokens.size(), id == 2 ? 0u : 4u);
  }
}

TEST(StagedPass, LogitsThatAreNotFiniteEndTheRequestOnAllStages) {
  for (const bool launches : {false, true}) {
    Stages stages(OptionsWith(40, 9, 6), 3, Pooling::kNone, launches);
    stages.first.poison = stages.last.poison = 50;
    stages.first.router_fault = stages.last.router_fault = "the router of layer 3 failed";
    for (uint64_t id = 1; id <= 4; ++id) {
      EngineRequest request{.id = id, .input_ids = {1, 2, static_cast<int32_t>(48 + id)}};
      request.sampling = {.max_new_tokens = 5, .temperature = 0, .ignore_eos = true};
      stages.Tell({request});
    }
    stages.RunOut();
    EXPECT_EQ(stages.seen[2].finish, FinishReason::kError);
    EXPECT_EQ(stages.seen[2].error, "the router of layer 3 failed");
  }
}

// Decoding requests are divided over the passes in flight, and take turns.
TEST(StagedPass, MicroBatchesTakeTurns) {
  RankEngine::Options options = OptionsWith(60, 64, 8);
  for (const int64_t limit : {0, 1}) {
    options.max_micro_batch = limit;
    Stages stages(options, 2);
    for (uint64_t id = 1; id <= 8; ++id) {
      EngineRequest request{.id = id, .input_ids = {1, static_cast<int32_t>(id)}};
      request.sampling = {.max_new_tokens = 20, .temperature = 0, .ignore_eos = true};
      stages.Tell({request});
    }
    stages.Step();  // all prompts
    stages.first.most_rows = 0;
    for (int step = 0; step < 60; ++step) stages.Step();
    EXPECT_EQ(stages.first.most_rows, limit == 0 ? 4 : 1);
    size_t least = 100, most = 0;
    for (const auto& [id, output] : stages.seen) {
      least = std::min(least, output.new_tokens.size());
      most = std::max(most, output.new_tokens.size());
    }
    EXPECT_EQ(stages.seen.size(), 8u);
    EXPECT_LE(most - least, 1u);
    stages.RunOut();
  }
}

// The later chunks of a long prompt are shorter, and of about equal cost. Outputs do not change.
TEST(StagedPass, DynamicChunksHaveEqualCost) {
  RankEngine::Options options = OptionsWith(80, /*chunk=*/32, /*max_running=*/6);
  options.chunk_keys = 40;
  std::vector<int64_t> rows;
  {
    Stages stages(options, 3);
    EngineRequest request = Greedy(1, Count(150), 1);
    stages.Tell({request});
    while (stages.last_engine.HasWork()) {
      stages.first.most_rows = 0;
      stages.Step();
      if (stages.first.most_rows > 0) rows.push_back(stages.first.most_rows);
    }
    stages.RunOut();
  }
  ASSERT_GT(rows.size(), 6u);
  EXPECT_EQ(rows.front(), 32);
  int64_t before = 0;
  for (size_t i = 0; i < rows.size(); before += rows[i++]) {
    if (i > 0) {
      EXPECT_LE(rows[i], rows[i - 1]);
    }
    if (i + 1 == rows.size()) continue;  // the rest
    EXPECT_LE(ChunkCost(before, rows[i], 40), ChunkCost(0, 32, 40) + 1e-9);
    EXPECT_GT(ChunkCost(before, rows[i] + 1, 40), ChunkCost(0, 32, 40));
  }
  EXPECT_EQ(before, 150);

  for (const double keys : {0.01, 1.0, 40.0, 1e9, std::numeric_limits<double>::infinity()}) {
    SCOPED_TRACE(keys);
    options.chunk_keys = 0;
    Rig alone(options);
    options.chunk_keys = keys;
    Stages stages(options, 3);
    Draws draws(3);
    for (uint64_t id = 1; id <= 30; ++id) {
      const EngineRequest request = RandomRequest(draws, id);
      alone.Run(request);
      stages.Tell({request});
      if (draws.Below(2)) stages.Step();
    }
    stages.RunOut();
    for (const auto& [id, want] : alone.seen)
      EXPECT_EQ(stages.seen[id].new_tokens, want.new_tokens);
  }
}

// The chunks of a prompt follow each other without waiting for results.
TEST(StagedPass, ChunksOfAPromptAreInFlightTogether) {
  Stages stages(OptionsWith(60, 10, 8), 4);
  EngineRequest request{.id = 1};
  for (int32_t i = 0; i < 40; ++i) request.input_ids.push_back(i);
  request.sampling = {.max_new_tokens = 1, .temperature = 0, .ignore_eos = true};
  stages.Tell({request});
  for (int step = 0; step < 4; ++step) stages.Step();
  EXPECT_EQ(stages.first.passes, 4);
  stages.RunOut();
  EXPECT_EQ(stages.first.passes, 4);
  EXPECT_EQ(stages.seen[1].new_tokens.size(), 1u);
}

}  // namespace
}  // namespace switchyard
