// Speculative decoding: outputs with drafts equal outputs without.
#include <gmock/gmock.h>

#include <ostream>

#include "core/format.h"
#include "core/test_effort.h"
#include "engine/kv_cache/state_slots.h"
#include "engine/sampler/random.h"
#include "engine/speculative/ngram_drafter.h"
#include "engine/speculative/test_drafters.h"
#include "engine/test_rank_engine.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

constexpr int32_t kVocab = 61;

RankEngine::Options With(Drafter* drafter, int32_t drafts, RankEngine::Options options = Roomy()) {
  options.drafter = drafter;
  options.max_drafts = drafts;
  return options;
}

// Runs the request alone without drafts, and gives its output to the oracle.
RequestOutput Teach(OracleDrafter& oracle, const EngineRequest& request) {
  Rig rig{Roomy()};
  RequestOutput output = rig.Run(request);
  oracle.outputs[request.id] = output.new_tokens;
  return output;
}

TEST(RankEngineSpeculative, CorrectDraftsGiveSeveralTokensInOneStep) {
  OracleDrafter oracle(1.0, kVocab);
  const EngineRequest request = Greedy(1, Count(6), 13);
  const RequestOutput want = Teach(oracle, request);
  Rig rig(With(&oracle, 3), kVocab);
  const RequestOutput got = rig.Run(request);
  EXPECT_EQ(got.new_tokens, want.new_tokens);
  EXPECT_EQ(rig.model.passes, 1 + 3);  // the prompt gives one token, then four in each step
  const EngineStats stats = rig.engine.Stats();
  EXPECT_EQ(stats.decode_tokens, 13);
  EXPECT_EQ(stats.verify_steps, 3);
  EXPECT_EQ(stats.drafted_tokens, 9);
  EXPECT_EQ(stats.accepted_tokens, 9);
  EXPECT_THAT(stats.accepted_by_position, ::testing::ElementsAre(3, 3, 3));
}

// Proposes trees whose second branch has the next two tokens.
class SecondBranchDrafter : public Drafter {
 public:
  explicit SecondBranchDrafter(Ids output) : output_(std::move(output)) {}
  void Draft(std::span<const DraftPart> parts, int64_t) override {
    for (const DraftPart& part : parts) {
      if (part.wanted < 2 || part.slots < 5) continue;
      const auto next = output_.begin() + part.sequence->output_length();
      const auto other = [](int32_t token) { return (token + 1) % kVocab; };
      part.sequence->drafts = {other(next[0]), 1, next[0], other(next[1]), next[1]};
      part.sequence->draft_parents = {0, 1, 0, 3, 3};
    }
  }

 private:
  const Ids output_;
};

TEST(RankEngineSpeculative, TheAcceptedPathOfATreeMovesToItsPositions) {
  const EngineRequest request = Greedy(1, Count(6), 13);
  const RequestOutput want = Rig{Roomy()}.Run(request);
  SecondBranchDrafter drafter(want.new_tokens);
  RankEngine::Options options = With(&drafter, 5);
  options.tree_depth = 2;
  options.tree_slots = 5;
  Rig rig(options, kVocab);
  EXPECT_EQ(rig.Run(request).new_tokens, want.new_tokens);
  EXPECT_EQ(rig.model.passes, 1 + 4);  // the prompt gives one token, then three in each step
  EXPECT_EQ(rig.model.moved, 2 * 4);
  const EngineStats stats = rig.engine.Stats();
  EXPECT_EQ(stats.drafted_tokens, 5 * 4);
  EXPECT_EQ(stats.accepted_tokens, 2 * 4);
  EXPECT_THAT(stats.verified_by_position, ::testing::ElementsAre(4, 4));
  EXPECT_THAT(stats.accepted_by_position, ::testing::ElementsAre(4, 4));
  // Benchmarks accept the first draft of each row.
  options.simulate_acceptance = 1.0;
  Rig simulated(options, kVocab);
  simulated.Run(request);
  EXPECT_EQ(simulated.engine.Stats().accepted_tokens, 2 * 4);
  EXPECT_EQ(simulated.model.moved, 0);
}

// As on a GPU: the engine gets the tokens of all rows, and no logits.
TEST(RankEngineSpeculative, TheModelDrawsTheTokensAfterDrafts) {
  OracleDrafter oracle(0.8, kVocab);
  EngineRequest request = Greedy(1, Count(6), 23);
  request.sampling.temperature = 0.9f;
  request.sampling.seed = 3;
  const RequestOutput want = Teach(oracle, request);
  Rig rig(With(&oracle, 3), kVocab, /*launches=*/true);
  EXPECT_EQ(rig.Run(request).new_tokens, want.new_tokens);
  EXPECT_EQ(rig.model.passes_with_logits, 0);
  EXPECT_EQ(rig.model.launched, 0);
  EXPECT_GT(rig.engine.Stats().accepted_tokens, 5);
  request.id = 2;
  request.logprob.enabled = true;
  oracle.outputs[2] = want.new_tokens;
  EXPECT_EQ(rig.Run(request).new_tokens, want.new_tokens);
  EXPECT_GT(rig.model.passes_with_logits, 0);
}

TEST(RankEngineSpeculative, AFaultInADrawnRowEndsTheOutputAfterTheTokensBeforeIt) {
  OracleDrafter oracle(1.0, kVocab);
  const EngineRequest request = Greedy(1, Count(6), 13);
  const Ids tokens = Teach(oracle, request).new_tokens;
  Rig plain{Roomy()};
  plain.model.poison = tokens[3];
  const RequestOutput want = plain.Run(request);
  Rig rig(With(&oracle, 5), kVocab, /*launches=*/true);
  rig.model.poison = tokens[3];
  const RequestOutput got = rig.Run(request);
  EXPECT_EQ(got.finish, FinishReason::kError);
  EXPECT_EQ(got.error, want.error);
  EXPECT_EQ(got.new_tokens, want.new_tokens);
}

TEST(RankEngineSpeculative, WrongDraftsCostNoToken) {
  OracleDrafter oracle(0.0, kVocab);
  const EngineRequest request = Greedy(1, Count(6), 13);
  Rig plain{Roomy()};
  const RequestOutput want = plain.Run(request);
  Rig rig(With(&oracle, 4), kVocab);
  EXPECT_EQ(rig.Run(request).new_tokens, want.new_tokens);
  EXPECT_GE(rig.model.passes, 13 - 3);
}

TEST(RankEngineSpeculative, NoDraftGoesBeyondTheLastToken) {
  OracleDrafter oracle(1.0, kVocab);
  for (const int32_t tokens : {1, 2, 3, 4, 5}) {
    const EngineRequest request = Greedy(1, Count(6), tokens);
    const RequestOutput want = Teach(oracle, request);
    Rig rig(With(&oracle, 8), kVocab);
    const RequestOutput got = rig.Run(request);
    EXPECT_EQ(got.new_tokens, want.new_tokens);
    EXPECT_EQ(got.finish, FinishReason::kLength);
    EXPECT_EQ(rig.engine.Stats().accepted_tokens, std::max(0, tokens - 2));
  }
}

TEST(RankEngineSpeculative, TheContextsEndLimitsDrafts) {
  RankEngine::Options options = Roomy();
  options.context_length = 20;
  options.num_pages = 5;
  OracleDrafter oracle(1.0, kVocab);
  Rig plain(options);
  const EngineRequest request = Greedy(1, Count(6), 100);
  const RequestOutput want = plain.Run(request);
  oracle.outputs[1] = want.new_tokens;
  Rig rig(With(&oracle, 7, options), kVocab);
  EXPECT_EQ(rig.Run(request).new_tokens, want.new_tokens);
  EXPECT_EQ(want.new_tokens.size(), 14u);
}

TEST(RankEngineSpeculative, StopTokensEndTheOutputWithinAStep) {
  OracleDrafter oracle(1.0, kVocab);
  EngineRequest request = Greedy(1, Count(6), 13);
  const Ids tokens = Teach(oracle, request).new_tokens;
  request.sampling.stop_token_ids = {tokens[5]};
  Rig plain{Roomy()};
  const RequestOutput want = plain.Run(request);
  Rig rig(With(&oracle, 4), kVocab);
  const RequestOutput got = rig.Run(request);
  EXPECT_EQ(got.new_tokens, want.new_tokens);
  EXPECT_EQ(got.finish, FinishReason::kStop);
  EXPECT_EQ(got.matched, tokens[5]);
}

TEST(RankEngineSpeculative, TokensBeforeAFaultAreReturned) {
  OracleDrafter oracle(1.0, kVocab);
  const EngineRequest request = Greedy(1, Count(6), 13);
  const Ids tokens = Teach(oracle, request).new_tokens;
  Rig plain{Roomy()};
  plain.model.poison = tokens[3];
  const RequestOutput want = plain.Run(request);
  Rig rig(With(&oracle, 5), kVocab);
  rig.model.poison = tokens[3];
  const RequestOutput got = rig.Run(request);
  EXPECT_EQ(got.finish, FinishReason::kError);
  EXPECT_EQ(got.error, want.error);
  EXPECT_EQ(got.new_tokens, want.new_tokens);
}

// A draft that gives logits that are not finite is only an error if it is accepted.
TEST(RankEngineSpeculative, RowsOfRejectedDraftsCannotFail) {
  OracleDrafter oracle(0.0, kVocab);  // drafts are 1, 2, 3, ...
  const EngineRequest request = Greedy(1, Count(6, 30), 13);
  Rig plain{Roomy()};
  const RequestOutput want = plain.Run(request);
  int32_t poison = -1;
  for (int32_t token = 1; token < 12 && poison < 0; ++token)
    if (!std::ranges::count(want.new_tokens, token)) poison = token;
  ASSERT_GT(poison, 0);
  Rig rig(With(&oracle, 5), kVocab);
  rig.model.poison = poison;
  const RequestOutput got = rig.Run(request);
  EXPECT_EQ(got.finish, FinishReason::kLength) << got.error;
  EXPECT_EQ(got.new_tokens, want.new_tokens);
}

TEST(RankEngineSpeculative, AMessageLimitsDrafts) {
  OracleDrafter oracle(1.0, kVocab);
  const EngineRequest request = Greedy(1, Count(6), 13);
  Teach(oracle, request);
  Rig rig(With(&oracle, 4), kVocab);
  rig.Tell({LimitDrafts{.drafts = 0}});
  rig.Run(request);
  EXPECT_EQ(rig.engine.Stats().drafted_tokens, 0);
  rig.Tell({LimitDrafts{.drafts = 9}});  // at most max_drafts
  EngineRequest again = request;
  again.id = 2;
  oracle.outputs[2] = oracle.outputs[1];
  rig.Run(again);
  EXPECT_THAT(rig.engine.Stats().accepted_by_position, ::testing::SizeIs(4));
}

TEST(RankEngineSpeculative, AnAbortedPassKeepsItsDrafts) {
  OracleDrafter oracle(1.0, kVocab);
  const EngineRequest request = Greedy(1, Count(6), 13);
  const RequestOutput want = Teach(oracle, request);
  Rig rig(With(&oracle, 3), kVocab);
  rig.model.during = [&](uint64_t pass) {
    if (pass % 2 == 0) {
      EXPECT_TRUE(rig.engine.AbortPass(pass));
    }
  };
  EXPECT_EQ(rig.Run(request).new_tokens, want.new_tokens);
  EXPECT_EQ(rig.engine.Stats().accepted_tokens, 9);
}

TEST(RankEngineSpeculative, AFailedPassCanRunAgain) {
  OracleDrafter oracle(0.8, kVocab);
  const EngineRequest request = Greedy(1, Count(6), 23);
  const RequestOutput want = Teach(oracle, request);
  Rig rig(With(&oracle, 3), kVocab);
  rig.model.during = rig.FailSometimes();
  rig.Tell({request});
  rig.RunThroughErrors();
  EXPECT_EQ(rig.seen[1].new_tokens, want.new_tokens);
}

TEST(RankEngineSpeculative, SimulatedAcceptanceDecidesByItself) {
  OracleDrafter oracle(0.0, kVocab);
  RankEngine::Options options = With(&oracle, 3);
  options.simulate_acceptance = 1.0;
  Rig rig(options, kVocab);
  rig.Run(Greedy(1, Count(6), 13));
  EXPECT_EQ(rig.engine.Stats().accepted_tokens, 9);
  options.simulate_acceptance = 0.0;
  Rig none(options, kVocab);
  none.Run(Greedy(1, Count(6), 13));
  EXPECT_EQ(none.engine.Stats().accepted_tokens, 0);
}

// With n-gram drafts, a request with a repetitive output gets several tokens per step, without a
// draft model.
TEST(RankEngineSpeculative, NgramsOfAFixedOutputAreAccepted) {
  NgramDrafter drafter;
  EngineRequest request = Greedy(1, Count(4), 60);
  request.sampling.allowed_token_ids = {5};
  Rig rig(With(&drafter, 4), kVocab);
  const RequestOutput got = rig.Run(request);
  EXPECT_EQ(got.new_tokens, Ids(60, 5));
  EXPECT_LT(rig.model.passes, 25);
}

// Random workloads with drafts of a given accuracy. A negative accuracy selects drafts from
// n-grams. `forced`: maximum number of drafts that a grammar forces. A sequence with forced drafts
// gets no others.
struct Workload {
  int32_t page_size;
  int64_t num_pages;
  int32_t chunk;
  bool radix;
  int32_t max_running;
  int32_t drafts;
  double accuracy;
  int64_t logit_rows = 0;
  int32_t forced = 0;
  bool draws = false;  // the model samples tokens where the engine needs no logits
  int32_t depth = 0;   // drafts are trees of this depth; 0: chains
  bool states = false;

  // The name of a test contains this text.
  friend void PrintTo(const Workload& w, std::ostream* out) {
    *out << fmt::format(
        "pages {} x {} chunk {} radix {} running {} drafts {} accuracy {} logit rows {} forced {} "
        "draws {} depth {} states {}",
        w.num_pages, w.page_size, w.chunk, w.radix, w.max_running, w.drafts, w.accuracy,
        w.logit_rows, w.forced, w.draws, w.depth, w.states);
  }
};

class RandomDrafts : public ::testing::TestWithParam<Workload> {
 protected:
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>(UniformDraw(99, ++draws_) * static_cast<double>(n));
  }
  EngineRequest RandomRequest(uint64_t id, int64_t longest) {
    EngineRequest request{.id = id};
    const auto length = static_cast<int32_t>(1 + Below(longest));
    request.input_ids = Count(length, static_cast<int32_t>(Below(3)) * 20);
    if (Below(2)) request.input_ids[Below(length)] = static_cast<int32_t>(Below(kVocab));
    SamplingParams& p = request.sampling;
    p.max_new_tokens = static_cast<int32_t>(Below(40));
    p.temperature = Below(3) ? 0.9f : 0.0f;
    if (Below(2)) p.seed = Below(5);
    if (Below(4) == 0) p.top_p = 0.8f;
    if (Below(4) == 0) p.top_k = 7;
    if (Below(4) == 0) p.repetition_penalty = 1.2f;
    if (Below(4) == 0) p.frequency_penalty = 0.3f;
    if (Below(4) == 0) p.min_new_tokens = std::min(p.max_new_tokens, 5);
    if (Below(4) == 0) p.logit_bias = {{3, 2.0f}, {7, 1.0f}};
    if (Below(4) == 0) p.allowed_token_ids = {3, 4, 7, 8};
    if (Below(4) == 0) p.bad_words = {{3, 4}, {8}};
    if (Below(4) == 0) p.stop_token_ids = {11, 12};
    p.ignore_eos = Below(2);
    if (Below(3) == 0)
      request.logprob = {
          .enabled = true, .start = static_cast<int32_t>(Below(longest)) - 1, .top = 2};
    if (Below(3) == 0)
      request.routed_experts = {.enabled = true, .start = static_cast<int32_t>(Below(length + 1))};
    const bool constrained = Below(GetParam().forced > 0 ? 2 : 4) == 0;
    if (constrained && p.allowed_token_ids.empty() && p.bad_words.empty())
      request.grammar = GetParam().forced > 0 ? 1 + Below(5) : 1;
    request.priority = static_cast<int32_t>(Below(3)) * 20;
    return request;
  }

 private:
  uint64_t draws_ = 0;
};

// Grammar 1 forces little text: each item is a letter from a to f, "xy", or a letter from k to p.
// The other grammars force most of their text. A pair of equal letters is one token or two.
std::vector<ControlMessage> Grammars() {
  GrammarVocabulary vocabulary;
  for (int32_t id = 0; id < kVocab; ++id)
    vocabulary.tokens.emplace_back(id < 26 ? 1 : 2, static_cast<char>('a' + id % 26));
  vocabulary.tokens[7] = "";
  vocabulary.stop_ids = {7};
  const TokenTable table(vocabulary);
  std::vector<ControlMessage> messages = {GrammarTokens{vocabulary.Encode()}};
  uint64_t id = 0;
  for (const GrammarSource& source :
       {RegexGrammar("([a-f]|xy|[k-p]){1,30}"), RegexGrammar("(abcdefg(x|yz)klmno){1,9}"),
        RegexGrammar("((aaabbb|cccc)(dd|ee)*){2,20}"), ChoiceGrammar({"abcabcabcabc", "ddddd"}),
        EbnfGrammar("root ::= (\"abc\" | \"x\" n \"yy\")+\nn[max_tokens=3] ::= [k-p]+")})
    messages.push_back(DefineGrammar{++id, CompileGrammar(source, table)->ToBytes()});
  return messages;
}

TEST_P(RandomDrafts, GiveTheOutputsWithoutDrafts) {
  const Workload& w = GetParam();
  RankEngine::Options plain{.page_size = w.page_size,
                            .num_pages = w.num_pages,
                            .max_running_requests = w.max_running,
                            .chunked_prefill_size = w.chunk,
                            .priorities = w.max_running % 2 == 0,
                            .enable_radix_cache = w.radix,
                            .context_length = 160,
                            .eos_token_ids = {7},
                            .random_seed = 5,
                            .max_logit_rows = w.logit_rows};
  RankEngine::Options alone_options = plain;
  alone_options.enable_radix_cache = false;
  alone_options.chunked_prefill_size = 1000;
  alone_options.max_logit_rows = 0;
  plain.max_forced = w.forced;
  if (w.states) plain.num_states = StateSlots::TotalFor(w.max_running, w.radix, w.drafts);
  const int64_t tree_drafts = w.depth > 0 ? w.drafts : 0;
  plain.tree_depth = w.depth;
  plain.tree_slots = w.depth > 0 ? w.drafts + 2 : 0;
  OracleDrafter oracles[] = {OracleDrafter(w.accuracy, kVocab, tree_drafts),
                             OracleDrafter(w.accuracy, kVocab, tree_drafts)};
  NgramDrafter ngrams[2];
  const auto drafter = [&](int i) -> Drafter* {
    if (w.drafts == 0) return nullptr;
    return w.accuracy < 0 ? static_cast<Drafter*>(&ngrams[i]) : &oracles[i];
  };
  Rig crowd(With(drafter(0), w.drafts, plain), kVocab, w.draws);
  Rig twin(With(drafter(1), w.drafts, plain), kVocab, w.draws);
  Rig alone(alone_options);
  for (Rig* rig : {&crowd, &twin, &alone}) rig->Tell(Grammars());
  const int64_t longest = std::min<int64_t>(100, w.page_size * w.num_pages);

  uint64_t next_id = 1;
  std::map<uint64_t, bool> aborted;
  constexpr uint64_t kRequests = FewerIfSanitized(200);
  while (next_id <= kRequests || crowd.engine.HasWork()) {
    std::vector<ControlMessage> messages;
    for (uint64_t n = Below(4); n > 0 && next_id <= kRequests; --n) {
      const EngineRequest request = RandomRequest(next_id++, longest);
      const Ids tokens = alone.Run(request).new_tokens;
      for (OracleDrafter& oracle : oracles) oracle.outputs[request.id] = tokens;
      messages.push_back(request);
    }
    if (Below(6) == 0) {
      const uint64_t id = 1 + Below(next_id);
      const auto seen = crowd.seen.find(id);
      if (id < next_id && (seen == crowd.seen.end() || seen->second.finish == FinishReason::kNone))
        aborted[id] = true;
      messages.push_back(AbortRequest{id});
    }
    if (Below(8) == 0) messages.push_back(LimitDrafts{static_cast<int32_t>(Below(w.drafts + 1))});
    crowd.Tell(messages);
    twin.Tell(messages);
    crowd.Step();
    twin.Step();
    ASSERT_EQ(crowd.model.fingerprint, twin.model.fingerprint) << "equal ranks diverged";
    ASSERT_FALSE(HasFailure());
    ASSERT_LE(crowd.model.most_rows, w.chunk + w.max_running * (1 + w.drafts));
  }
  EXPECT_TRUE(crowd.engine.PoolIsWhole());
  const EngineStats stats = crowd.engine.Stats();
  EXPECT_EQ(stats.drafted_tokens > 0, w.drafts > 0);
  EXPECT_GE(stats.accepted_tokens, w.accuracy > 0 ? stats.verify_steps / 4 : 0);
  EXPECT_EQ(stats.accepted_forced_tokens > 20, w.forced > 0);
  EXPECT_EQ(crowd.model.moved > 20, w.depth > 0);
  ASSERT_EQ(crowd.seen.size(), kRequests);
  for (const auto& [id, want] : alone.seen) {
    const RequestOutput& got = crowd.seen[id];
    SCOPED_TRACE(fmt::format("request {}", id));
    ExpectSameOutput(got, want, aborted.count(id) > 0);
  }
  EXPECT_TRUE(std::get<FlushResult>(crowd.Tell({FlushCache{}}).at(0)).done);
  EXPECT_EQ(crowd.engine.Stats().free_pages, w.num_pages);
}

INSTANTIATE_TEST_SUITE_P(
    Pools, RandomDrafts,
    ::testing::Values(
        Workload{1, 128, 1, true, 8, 3, 0.8}, Workload{1, 110, 16, true, 64, 5, 0.9},
        Workload{4, 30, 7, true, 16, 2, 0.7}, Workload{4, 30, 64, false, 16, 4, 0.9, 24},
        Workload{16, 8, 64, true, 8, 3, 0.8, 7}, Workload{16, 10, 5, true, 32, 1, 0.5},
        Workload{16, 200, 32, true, 64, 8, 0.95}, Workload{4, 1000, 64, true, 1, 15, 0.9},
        Workload{1, 160, 64, false, 5, 3, 0.0}, Workload{16, 200, 64, false, 64, 4, -1},
        Workload{4, 40, 8, true, 9, 3, -1}, Workload{16, 200, 32, true, 1, 4, 0.9, 0, 0, true},
        Workload{4, 40, 8, true, 2, 3, 0.7, 0, 0, true},
        Workload{1, 128, 16, false, 3, 2, 0.5, 0, 0, true},
        Workload{16, 200, 64, true, 16, 4, -1, 0, 0, true}));

INSTANTIATE_TEST_SUITE_P(Trees, RandomDrafts,
                         ::testing::Values(Workload{1, 128, 1, true, 8, 6, 0.8, 0, 0, false, 3},
                                           Workload{1, 110, 16, true, 64, 15, 0.9, 0, 0, false, 5},
                                           Workload{4, 40, 7, true, 16, 7, 0.7, 0, 0, false, 4},
                                           Workload{4, 40, 64, false, 16, 8, 0.9, 24, 0, false, 4},
                                           Workload{16, 12, 64, true, 8, 9, 0.8, 7, 0, false, 3},
                                           Workload{16, 200, 32, true, 64, 20, 0.9, 0, 0, false, 6},
                                           Workload{4, 1000, 64, true, 1, 30, 0.9, 0, 0, false, 16},
                                           Workload{16, 200, 64, false, 3, 5, 0.0, 0, 0, false, 1},
                                           Workload{4, 40, 7, true, 16, 7, 0.8, 0, 8, false, 3},
                                           Workload{1, 110, 16, true, 64, 15, 0.9, 0, 0, true, 5},
                                           Workload{4, 40, 7, true, 16, 7, 0.7, 0, 0, true, 4}));

INSTANTIATE_TEST_SUITE_P(JumpForward, RandomDrafts,
                         ::testing::Values(Workload{1, 128, 1, true, 8, 0, 0, 0, 8},
                                           Workload{1, 110, 16, true, 64, 0, 0, 0, 5},
                                           Workload{4, 30, 7, true, 16, 0, 0, 0, 8},
                                           Workload{4, 30, 64, false, 16, 0, 0, 24, 8},
                                           Workload{16, 8, 64, true, 8, 0, 0, 7, 3},
                                           Workload{16, 200, 32, true, 64, 0, 0, 0, 8},
                                           Workload{4, 1000, 64, true, 1, 0, 0, 0, 8},
                                           Workload{4, 30, 7, true, 16, 2, 0.7, 0, 8},
                                           Workload{16, 200, 32, true, 64, 8, 0.95, 0, 4},
                                           Workload{4, 40, 8, true, 9, 3, -1, 0, 8}));

INSTANTIATE_TEST_SUITE_P(
    States, RandomDrafts,
    ::testing::Values(Workload{1, 130, 16, true, 8, 3, 0.6, 0, 0, false, 0, true},
                      Workload{4, 33, 7, true, 16, 8, 0.8, 0, 0, false, 0, true},
                      Workload{16, 12, 64, true, 5, 4, -1, 0, 0, false, 0, true},
                      Workload{4, 40, 64, false, 8, 1, 0.5, 0, 0, false, 0, true}));

}  // namespace
}  // namespace switchyard
