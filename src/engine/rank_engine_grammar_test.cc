// Outputs that a grammar constrains.
#include <gmock/gmock.h>

#include "core/error.h"
#include "engine/test_rank_engine.h"
#include "grammar/compiler.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kEos = 7;  // the stop token of Roomy()

// 61 tokens: a letter each, and some pairs. Token 7 ends an output, token 9 has no bytes.
GrammarVocabulary Letters() {
  GrammarVocabulary vocabulary;
  for (int32_t id = 0; id < 61; ++id) {
    const char letter = static_cast<char>('a' + id % 26);
    vocabulary.tokens.push_back(id < 26 ? std::string(1, letter) : std::string(2, letter));
  }
  vocabulary.tokens[kEos] = vocabulary.tokens[9] = "";
  vocabulary.stop_ids = {kEos};
  return vocabulary;
}

std::string TextOf(const Ids& ids) {
  std::string text;
  for (const int32_t id : ids) text += Letters().tokens.at(id);
  return text;
}

// The messages that define grammars 1, 2, … on a rank.
std::vector<ControlMessage> Define(const std::vector<GrammarSource>& sources) {
  const TokenTable table(Letters());
  std::vector<ControlMessage> messages = {GrammarTokens{Letters().Encode()}};
  for (size_t i = 0; i < sources.size(); ++i)
    messages.push_back(DefineGrammar{i + 1, CompileGrammar(sources[i], table)->ToBytes()});
  return messages;
}

constexpr char kItems[] = "root ::= item item+\nitem ::= \"ab\" | \"ccc\" | \"x\"";

// Grammar 1: two or more items. Grammar 2: five letters from l to z. Grammar 3: 90 letters from a
// to f.
std::vector<ControlMessage> SomeGrammars() {
  return Define({EbnfGrammar(kItems), RegexGrammar("[l-z]{5}"), RegexGrammar("[a-f]{90}")});
}

EngineRequest With(uint64_t grammar, EngineRequest request) {
  request.grammar = grammar;
  return request;
}

EngineRequest Drawn(uint64_t id, Ids prompt, int32_t max_new, uint64_t seed) {
  EngineRequest request = Greedy(id, std::move(prompt), max_new);
  request.sampling.temperature = 1;
  request.sampling.seed = seed;
  return request;
}

RequestOutput Alone(const EngineRequest& request, RankEngine::Options options = Roomy()) {
  Rig rig(std::move(options));
  rig.Tell(SomeGrammars());
  return rig.Run(request);
}

bool IsPrefixOfFirst(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    size_t step = 0;
    for (const std::string_view item : {"ab", "ccc", "x"})
      if (item.starts_with(rest) || rest.starts_with(item)) step = item.size();
    if (step == 0) return false;
    at += step;
  }
  return true;
}

TEST(RankEngineGrammar, OutputsAreInTheGrammar) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RequestOutput first = Alone(With(1, Drawn(1, Count(6), 12, seed)));
    EXPECT_TRUE(IsPrefixOfFirst(TextOf(first.new_tokens))) << TextOf(first.new_tokens);
    const RequestOutput second = Alone(With(2, Drawn(1, Count(6), 12, seed)));
    EXPECT_EQ(second.finish, FinishReason::kStop);  // at the grammar's end, despite ignore_eos
    EXPECT_EQ(second.matched, kEos);
    EXPECT_EQ(second.new_tokens.back(), kEos);
    const std::string text = TextOf(second.new_tokens);
    EXPECT_EQ(text.size(), 5u);
    EXPECT_EQ(text.find_first_not_of("lmnopqrstuvwxyz"), std::string::npos) << text;
  }
}

TEST(RankEngineGrammar, OtherRequestsAreNotConstrained) {
  Rig rig{Roomy()};
  rig.Tell(SomeGrammars());
  rig.Tell(
      {With(1, Greedy(1, Count(6))), Greedy(2, Count(9, 3)), With(2, Greedy(3, Count(5, 20)))});
  rig.RunOut();
  EXPECT_EQ(rig.seen[1].new_tokens, Alone(With(1, Greedy(1, Count(6)))).new_tokens);
  EXPECT_EQ(rig.seen[2].new_tokens, Alone(Greedy(2, Count(9, 3))).new_tokens);
  EXPECT_EQ(rig.seen[3].new_tokens, Alone(With(2, Greedy(3, Count(5, 20)))).new_tokens);
}

// The device samples with masks that the host computes while the pass runs.
TEST(RankEngineGrammar, LaunchedPassesGiveTheSameOutputs) {
  for (const bool overlap : {true, false}) {
    RankEngine::Options options = Roomy();
    options.overlap_schedule = overlap;
    Rig rig(options, 61, /*launches=*/true);
    rig.Tell(SomeGrammars());
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 6; ++id)
      requests.push_back(With(id % 3, Drawn(id, Count(3 + static_cast<int32_t>(id), 2), 14, id)));
    for (const EngineRequest& request : requests) {
      rig.Tell({request});
      rig.Step();
    }
    rig.RunOut();
    EXPECT_EQ(rig.model.launched > 0, overlap);
    for (const EngineRequest& request : requests) {
      const RequestOutput want = Alone(request);
      EXPECT_EQ(rig.seen[request.id].new_tokens, want.new_tokens) << request.id;
      EXPECT_EQ(rig.seen[request.id].finish, want.finish);
    }
  }
}

std::vector<EngineRequest> TellSeveral(Rig& rig) {
  rig.Tell(SomeGrammars());
  std::vector<EngineRequest> requests;
  for (uint64_t id = 1; id <= 6; ++id)
    requests.push_back(With(id % 3, Drawn(id, Count(3 + static_cast<int32_t>(id), 2), 14, id)));
  for (const EngineRequest& request : requests) rig.Tell({request});
  return requests;
}

TEST(RankEngineGrammar, AbortedLaunchedPassesRunAgainWithTheSameResults) {
  Rig rig(Roomy(), 61, /*launches=*/true);
  const std::vector<EngineRequest> requests = TellSeveral(rig);
  int aborts = 0;
  for (int step = 0; rig.engine.HasWork(); ++step) {
    ASSERT_LT(step, 1000);
    rig.Step();
    if (rig.engine.launched() && step % 3 == 1) {
      EXPECT_TRUE(rig.engine.AbortPass(rig.engine.last_pass()));
      ++aborts;
    }
  }
  EXPECT_GT(aborts, 2);
  for (const EngineRequest& request : requests)
    EXPECT_EQ(rig.seen[request.id].new_tokens, Alone(request).new_tokens) << request.id;
}

// To fill the masks, the engine has already processed the previous pass when the error occurs.
TEST(RankEngineGrammar, AfterAnErrorBehindTheMasksThePassRunsAgain) {
  Rig rig(Roomy(), 61, /*launches=*/true);
  const std::vector<EngineRequest> requests = TellSeveral(rig);
  rig.model.after_draw = rig.FailSometimes();
  rig.RunThroughErrors();
  for (const EngineRequest& request : requests)
    EXPECT_EQ(rig.seen[request.id].new_tokens, Alone(request).new_tokens) << request.id;
}

TEST(RankEngineGrammar, ChunksOfThePromptChangeNothing) {
  RankEngine::Options chunked = Roomy();
  chunked.chunked_prefill_size = 4;
  for (const bool launches : {false, true}) {
    Rig rig(chunked, 61, launches);
    rig.Tell(SomeGrammars());
    const EngineRequest request = With(1, Drawn(1, Count(30), 10, 5));
    EXPECT_EQ(rig.Run(request).new_tokens, Alone(request).new_tokens);
  }
}

TEST(RankEngineGrammar, RetractedRequestsResumeInTheirGrammar) {
  for (const bool launches : {false, true}) {
    RankEngine::Options options = Roomy();
    options.num_pages = 12;  // 48 tokens
    Rig tight(options, 61, launches);
    tight.Tell(SomeGrammars());
    std::vector<ControlMessage> requests;
    for (uint64_t id = 1; id <= 4; ++id)
      requests.push_back(
          With(3, Drawn(id, Count(4, static_cast<int32_t>(id) * 10), 24, /*seed=*/id)));
    tight.Tell(requests);
    tight.RunOut();
    EXPECT_GT(tight.engine.Stats().retractions, 0);
    for (uint64_t id = 1; id <= 4; ++id)
      EXPECT_EQ(tight.seen[id].new_tokens,
                Alone(std::get<EngineRequest>(requests[id - 1])).new_tokens);
  }
}

TEST(RankEngineGrammar, OutputsContinueInTheirGrammarInANewEngine) {
  for (const bool launches : {false, true}) {
    for (const size_t known : {1u, 3u, 4u}) {
      EngineRequest request = With(2, Drawn(1, Count(6), 12, 3));
      const RequestOutput want = Alone(request);
      request.output_ids.assign(want.new_tokens.begin(),
                                want.new_tokens.begin() + static_cast<std::ptrdiff_t>(known));
      Rig rig(Roomy(), 61, launches);
      rig.Tell(SomeGrammars());
      const RequestOutput rest = rig.Run(request);
      Ids all = request.output_ids;
      all.insert(all.end(), rest.new_tokens.begin(), rest.new_tokens.end());
      EXPECT_EQ(all, want.new_tokens);
      EXPECT_EQ(rest.finish, FinishReason::kStop);
    }
  }
}

TEST(RankEngineGrammar, PenaltiesAndLogprobsComeBesideTheGrammar) {
  EngineRequest request = With(1, Drawn(1, Count(6), 10, 3));
  request.sampling.repetition_penalty = 1.3f;
  request.logprob = {.enabled = true, .start = 0, .top = 2};
  const RequestOutput want = Alone(request);
  EXPECT_TRUE(IsPrefixOfFirst(TextOf(want.new_tokens)));
  EXPECT_EQ(want.output_logprobs.size(), want.new_tokens.size());
  Rig launching(Roomy(), 61, true);
  launching.Tell(SomeGrammars());
  launching.Tell({With(2, Drawn(2, Count(9, 3), 12, 4))});
  launching.Step();
  launching.Step();
  launching.Tell({request});  // its passes need logits on the host, and follow launched passes
  launching.RunOut();
  EXPECT_EQ(launching.seen[1].new_tokens, want.new_tokens);
  EXPECT_EQ(launching.seen[2].new_tokens, Alone(With(2, Drawn(2, Count(9, 3), 12, 4))).new_tokens);
}

TEST(RankEngineGrammar, AMinimumThatTheGrammarDoesNotReachIsAnError) {
  EngineRequest request = With(2, Greedy(1, Count(6), 20));
  request.sampling.min_new_tokens = 10;
  const RequestOutput output = Alone(request);
  EXPECT_EQ(output.finish, FinishReason::kError);
  EXPECT_EQ(output.error_kind, ErrorKind::kInvalid);
  EXPECT_THAT(output.error, HasSubstr("grammar"));
}

TEST(RankEngineGrammar, AGrammarWithoutContinuationEndsItsRequestOnly) {
  const std::vector<ControlMessage> grammars =
      Define({EbnfGrammar("root ::= \"ab\" b\nb ::= b \"c\"")});
  for (const bool launches : {false, true}) {
    Rig rig(Roomy(), 61, launches);
    rig.Tell(grammars);
    rig.Tell({With(1, Greedy(1, Count(6))), Greedy(2, Count(9, 3))});
    rig.RunOut();
    EXPECT_EQ(rig.seen[1].finish, FinishReason::kError);
    EXPECT_EQ(rig.seen[1].error_kind, ErrorKind::kInvalid);
    EXPECT_THAT(rig.seen[1].error, HasSubstr("allows none"));
    EXPECT_EQ(TextOf(rig.seen[1].new_tokens), "ab");
    EXPECT_EQ(rig.seen[2].new_tokens, Alone(Greedy(2, Count(9, 3))).new_tokens);
  }
}

TEST(RankEngineGrammar, UndefinedAndDroppedGrammarsAreRefused) {
  Rig rig{Roomy()};
  EXPECT_THAT(rig.Run(With(5, Greedy(1, Count(6)))).error, HasSubstr("grammar 5"));
  rig.Tell(SomeGrammars());
  rig.Tell({With(2, Greedy(2, Count(6)))});
  rig.Step();
  rig.Tell({DropGrammar{2}});  // the open request keeps grammar 2
  rig.RunOut();
  EXPECT_EQ(rig.seen[2].new_tokens, Alone(With(2, Greedy(2, Count(6)))).new_tokens);
  EXPECT_THAT(rig.Run(With(2, Greedy(3, Count(6)))).error, HasSubstr("grammar 2"));
}

TEST(RankEngineGrammar, AMalformedGrammarEndsItsRequest) {
  Rig rig{Roomy()};
  rig.Tell({GrammarTokens{Letters().Encode()}, DefineGrammar{1, "{}"}});
  const RequestOutput output = rig.Run(With(1, Greedy(1, Count(6))));
  EXPECT_EQ(output.finish, FinishReason::kError);
  EXPECT_THAT(output.error, HasSubstr("malformed"));
}

TEST(RankEngineGrammar, ARequestMayBeAbortedWhileItsPassRuns) {
  Rig rig(Roomy(), 61, true);
  rig.Tell(SomeGrammars());
  rig.Tell({With(1, Drawn(1, Count(6), 20, 1)), With(2, Drawn(2, Count(9, 3), 12, 2))});
  rig.Step();
  rig.Step();
  rig.Tell({AbortRequest{1}});
  rig.RunOut();
  EXPECT_EQ(rig.seen[1].finish, FinishReason::kAbort);
  EXPECT_EQ(rig.seen[2].new_tokens, Alone(With(2, Drawn(2, Count(9, 3), 12, 2))).new_tokens);
}

}  // namespace
}  // namespace switchyard
