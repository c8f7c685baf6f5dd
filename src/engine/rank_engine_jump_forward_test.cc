// Jump-forward decoding: drafts that grammars force, on one rank.
#include <gmock/gmock.h>

#include "engine/speculative/test_drafters.h"
#include "engine/test_rank_engine.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

using ::testing::IsEmpty;

constexpr int32_t kVocab = 61, kEos = 7;  // as in Roomy()

// A letter each, then pairs of equal letters. Token 9 has no bytes.
GrammarVocabulary Letters() {
  GrammarVocabulary vocabulary;
  for (int32_t id = 0; id < kVocab; ++id)
    vocabulary.tokens.emplace_back(id < 26 ? 1 : 2, static_cast<char>('a' + id % 26));
  vocabulary.tokens[kEos] = vocabulary.tokens[9] = "";
  vocabulary.stop_ids = {kEos};
  return vocabulary;
}

constexpr char kLetters[] = "mnopqrstuvwxyzklmnopqrstuvw";  // has only one tokenization

RankEngine::Options Jumping(RankEngine::Options options = Roomy()) {
  options.max_forced = 8;
  return options;
}

// Defines the grammar as grammar 1.
void Define(Rig& rig, const GrammarSource& source) {
  const TokenTable table(Letters());
  rig.Tell({GrammarTokens{Letters().Encode()},
            DefineGrammar{1, CompileGrammar(source, table)->ToBytes()}});
}

EngineRequest Constrained(uint64_t id, int32_t tokens, float temperature = 0) {
  EngineRequest request = Greedy(id, Count(6), tokens);
  request.sampling.temperature = temperature;
  request.sampling.seed = 3;
  request.grammar = 1;
  return request;
}

RequestOutput Plain(const GrammarSource& source, const EngineRequest& request) {
  Rig rig{Roomy()};
  Define(rig, source);
  return rig.Run(request);
}

TEST(RankEngineJumpForward, ForcedTextTakesFewSteps) {
  const GrammarSource source = ChoiceGrammar({kLetters});
  const EngineRequest request = Constrained(1, 100);
  const RequestOutput want = Plain(source, request);
  ASSERT_EQ(want.new_tokens.size(), sizeof(kLetters));  // with the stop token
  Rig rig(Jumping());
  Define(rig, source);
  const RequestOutput got = rig.Run(request);
  EXPECT_EQ(got.new_tokens, want.new_tokens);
  EXPECT_EQ(got.finish, FinishReason::kStop);
  // The prompt's pass gives one token, and each step gives 9. The row of the last letter gives the
  // stop token.
  EXPECT_EQ(rig.model.passes, 1 + 3);
  const EngineStats stats = rig.engine.Stats();
  EXPECT_EQ(stats.forced_steps, 3);
  EXPECT_EQ(stats.forced_tokens, 8 + 8 + 8);
  EXPECT_EQ(stats.accepted_forced_tokens, stats.forced_tokens);
  EXPECT_EQ(stats.verify_steps, 0);
  EXPECT_EQ(stats.drafted_tokens, 0);
  EXPECT_THAT(stats.verified_by_position, IsEmpty());
  EXPECT_EQ(stats.decode_tokens, std::ssize(want.new_tokens));
}

// The model writes pairs of letters as one token or as two.
TEST(RankEngineJumpForward, TheModelChoosesTheSplit) {
  const GrammarSource source = ChoiceGrammar({"aabbccddeeaabbccddeeaabbccddeeaabbcc"});
  int64_t accepted = 0, rejected = 0;
  for (const float temperature : {0.0f, 1.0f, 2.0f}) {
    const EngineRequest request = Constrained(1, 100, temperature);
    const RequestOutput want = Plain(source, request);
    Rig rig(Jumping());
    Define(rig, source);
    const RequestOutput got = rig.Run(request);
    EXPECT_EQ(got.new_tokens, want.new_tokens);
    EXPECT_EQ(got.finish, want.finish);
    const EngineStats stats = rig.engine.Stats();
    accepted += stats.accepted_forced_tokens;
    rejected += stats.forced_tokens - stats.accepted_forced_tokens;
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(rejected, 0);
}

TEST(RankEngineJumpForward, LimitsOfTheOutputHold) {
  const GrammarSource source = ChoiceGrammar({kLetters});
  for (const int32_t tokens : {1, 2, 3, 9, 10, 11, 20}) {
    EngineRequest request = Constrained(1, tokens);
    request.logprob = {.enabled = true, .start = 0, .top = 2};
    const RequestOutput want = Plain(source, request);
    Rig rig(Jumping());
    Define(rig, source);
    ExpectSameOutput(rig.Run(request), want);
    EXPECT_EQ(want.finish, FinishReason::kLength);
  }
  EngineRequest request = Constrained(1, 100);
  request.sampling.stop_token_ids = {'r' - 'a'};
  const RequestOutput want = Plain(source, request);
  Rig rig(Jumping());
  Define(rig, source);
  ExpectSameOutput(rig.Run(request), want);
  EXPECT_EQ(want.matched, 'r' - 'a');
}

TEST(RankEngineJumpForward, OtherRequestsHaveNoDrafts) {
  const GrammarSource source = ChoiceGrammar({kLetters});
  Rig rig(Jumping());
  Define(rig, source);
  rig.Tell({Greedy(2, Count(9, 3), 12), Constrained(1, 100)});
  rig.RunOut();
  Rig plain{Roomy()};
  EXPECT_EQ(rig.seen[2].new_tokens, plain.Run(Greedy(2, Count(9, 3), 12)).new_tokens);
  EXPECT_EQ(rig.seen[2].forced.steps, 0);
  EXPECT_EQ(rig.engine.Stats().forced_steps, 3);
}

// The speculative algorithm proposes drafts only where the grammar forces no text.
TEST(RankEngineJumpForward, ForcedDraftsPrecedeThoseOfTheAlgorithm) {
  const GrammarSource source = RegexGrammar("[a-e]{4}mnopqrst[a-e]{4}");
  const EngineRequest request = Constrained(1, 100);
  const RequestOutput want = Plain(source, request);
  OracleDrafter oracle(1.0, kVocab);
  oracle.outputs[1] = want.new_tokens;
  RankEngine::Options options = Jumping();
  options.drafter = &oracle;
  options.max_drafts = 2;
  Rig rig(options);
  Define(rig, source);
  EXPECT_EQ(rig.Run(request).new_tokens, want.new_tokens);
  const EngineStats stats = rig.engine.Stats();
  EXPECT_GT(stats.accepted_tokens, 0);
  EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
  EXPECT_GT(stats.accepted_forced_tokens, 3);
  EXPECT_EQ(stats.accepted_forced_tokens, stats.forced_tokens);
}

TEST(RankEngineJumpForward, SimulatedAcceptanceIsOfTheAlgorithmOnly) {
  const GrammarSource source = ChoiceGrammar({kLetters});
  OracleDrafter oracle(1.0, kVocab);
  RankEngine::Options options = Jumping();
  options.drafter = &oracle;
  options.max_drafts = 2;
  options.simulate_acceptance = 0;
  Rig rig(options);
  Define(rig, source);
  const EngineRequest request = Constrained(1, 100);
  EXPECT_EQ(rig.Run(request).new_tokens, Plain(source, request).new_tokens);
  EXPECT_EQ(rig.engine.Stats().accepted_forced_tokens, 8 + 8 + 8);
}

// Models that sample tokens themselves, as on GPUs, get no forced drafts.
TEST(RankEngineJumpForward, IsOffIfTheModelDraws) {
  const GrammarSource source = ChoiceGrammar({kLetters});
  Rig rig(Jumping(), kVocab, /*launches=*/true);
  Define(rig, source);
  const EngineRequest request = Constrained(1, 100);
  EXPECT_EQ(rig.Run(request).new_tokens, Plain(source, request).new_tokens);
  EXPECT_EQ(rig.engine.Stats().forced_steps, 0);
  EXPECT_GT(rig.model.launched, 0);
}

// A step has at most chunk + running rows, the size of the buffers, and prompts keep half of the
// chunk.
TEST(RankEngineJumpForward, DraftsTakeTheRoomOfPromptRows) {
  const GrammarSource source = RegexGrammar("(abcdefg){60}");
  RankEngine::Options options = Jumping();
  options.chunked_prefill_size = 10;
  options.max_running_requests = 5;
  Rig rig(options);
  Define(rig, source);
  for (uint64_t id = 1; id <= 4; ++id) rig.Tell({Constrained(id, 90)});
  for (int i = 0; i < 12; ++i) rig.Step();
  EXPECT_GT(rig.model.most_rows, 10);
  rig.Tell({Greedy(9, Count(40, 7), 1)});
  int steps = 0;
  for (; rig.seen.count(9) == 0 && steps < 100; ++steps) rig.Step();
  EXPECT_LE(steps, 40 / 5);
  rig.RunOut();
  EXPECT_LE(rig.model.most_rows, 10 + 5);
  EXPECT_EQ(rig.seen[1].new_tokens, Plain(source, Constrained(1, 90)).new_tokens);
}

TEST(RankEngineJumpForward, AnAbortedPassKeepsItsDrafts) {
  const GrammarSource source = ChoiceGrammar({kLetters});
  Rig rig(Jumping());
  Define(rig, source);
  rig.model.during = [&](uint64_t pass) {
    if (pass % 2 == 0) {
      EXPECT_TRUE(rig.engine.AbortPass(pass));
    }
  };
  const EngineRequest request = Constrained(1, 100);
  EXPECT_EQ(rig.Run(request).new_tokens, Plain(source, request).new_tokens);
  EXPECT_EQ(rig.engine.Stats().forced_steps, 3);
}

TEST(RankEngineJumpForward, AFailedPassCanRunAgain) {
  const GrammarSource source = ChoiceGrammar({kLetters});
  Rig rig(Jumping());
  Define(rig, source);
  rig.model.during = rig.FailSometimes();
  rig.Tell({Constrained(1, 100), Greedy(2, Count(9, 3), 20)});
  rig.RunThroughErrors();
  EXPECT_EQ(rig.seen[1].new_tokens, Plain(source, Constrained(1, 100)).new_tokens);
}

TEST(RankEngineJumpForward, ARequestOfANewEngineGoesOn) {
  const GrammarSource source = ChoiceGrammar({kLetters});
  EngineRequest request = Constrained(1, 100);
  const Ids want = Plain(source, request).new_tokens;
  request.output_ids.assign(want.begin(), want.begin() + 5);
  Rig rig(Jumping());
  Define(rig, source);
  Ids all = request.output_ids;
  const RequestOutput rest = rig.Run(request);
  all.insert(all.end(), rest.new_tokens.begin(), rest.new_tokens.end());
  EXPECT_EQ(all, want);
  EXPECT_EQ(rig.model.passes, 1 + 3);
}

}  // namespace
}  // namespace switchyard
