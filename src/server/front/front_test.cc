#include "server/front/front.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RecordingLink : public RankLink {
 public:
  void Send(const std::vector<ControlMessage>& messages) override {
    sent.insert(sent.end(), messages.begin(), messages.end());
  }
  std::vector<ControlMessage> sent;
};

class FrontTest : public ::testing::Test {
 protected:
  GenerationSpec Spec() const {
    GenerationSpec spec;
    spec.input_ids = tokenizer->Encode("Hello", false);
    return spec;
  }
  uint64_t Submit(GenerationSpec spec) {
    return front.Submit(std::move(spec), [this](const GenerationEvent& e) { events.push_back(e); });
  }
  std::string Refusal(GenerationSpec spec) const {
    try {
      front.Check(spec);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kInvalid);
      return e.what();
    }
    return "accepted";
  }
  void Tokens(uint64_t id, const std::string& text) {
    front.OnMessage(StepOutputs{{{.id = id, .new_tokens = tokenizer->Encode(text, false)}}});
  }

  RecordingLink link;
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::FromFile(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe/tokenizer.json");
  Front front{link, *tokenizer, {.vocab_size = 512, .context_length = 64, .cache_tokens = 1024}};
  std::vector<GenerationEvent> events;
};

// Markers of an output parser stay in the text; other special tokens do not.
TEST_F(FrontTest, ChosenSpecialTokensStayInTheText) {
  GenerationSpec spec = Spec();
  spec.stream_interval = 1;
  spec.token_ends = true;
  const int32_t start = *tokenizer->TokenToId("<|im_start|>");
  spec.shown_special_tokens = {start};
  const uint64_t id = Submit(spec);
  std::vector<int32_t> tokens = tokenizer->Encode("a<|im_start|>b<|im_end|>c", false);
  ASSERT_THAT(tokens, SizeIs(5));
  front.OnMessage(StepOutputs{{{.id = id, .new_tokens = tokens}}});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].text, "a<|im_start|>bc");
  EXPECT_THAT(events[0].token_ends, ElementsAre(1, 13, 14, 14, 15));
}

// Ranks reject these values too, but a rejection by a rank gives status 500.
TEST_F(FrontTest, RefusesWhatRanksWouldRefuse) {
  GenerationSpec spec = Spec();
  spec.logprob = {.enabled = true, .top = 513};
  EXPECT_THAT(Refusal(spec), HasSubstr("top_logprobs"));
  spec.logprob = {.enabled = true, .token_ids = {512}};
  EXPECT_THAT(Refusal(spec), HasSubstr("token_ids_logprob"));
  spec.logprob = {.enabled = true, .token_ids = std::vector<int32_t>(4097, 1)};
  EXPECT_THAT(Refusal(spec), HasSubstr("token_ids_logprob"));
  spec = Spec();
  spec.input_ids.assign(64, 1);
  EXPECT_THAT(Refusal(spec), HasSubstr("maximum context length is 64 tokens"));
}

std::shared_ptr<const ReadyGrammar> Grammar(uint64_t id, size_t bytes) {
  static const auto kVocabulary = std::make_shared<const std::string>("vocabulary");
  auto grammar = std::make_shared<ReadyGrammar>();
  grammar->id = id;
  grammar->bytes = std::string(bytes, 'x');
  grammar->vocabulary = kVocabulary;
  return grammar;
}

// Describes each message as "vocabulary", "define 1", "drop 1" or "request 1".
std::vector<std::string> Described(const std::vector<ControlMessage>& messages) {
  std::vector<std::string> words;
  for (const ControlMessage& message : messages) {
    if (const auto* tokens = std::get_if<GrammarTokens>(&message)) words.push_back(tokens->bytes);
    if (const auto* define = std::get_if<DefineGrammar>(&message))
      words.push_back(fmt::format("define {}", define->id));
    if (const auto* drop = std::get_if<DropGrammar>(&message))
      words.push_back(fmt::format("drop {}", drop->id));
    if (const auto* request = std::get_if<EngineRequest>(&message))
      words.push_back(fmt::format("request {}", request->grammar));
  }
  return words;
}

TEST_F(FrontTest, DefinesAGrammarBeforeItsFirstRequest) {
  for (const uint64_t id : {0u, 1u, 1u, 2u, 1u}) {
    GenerationSpec spec = Spec();
    if (id != 0) spec.grammar = Grammar(id, 10);
    Submit(spec);
  }
  EXPECT_THAT(Described(link.sent), ElementsAre("request 0", "vocabulary", "define 1", "request 1",
                                                "request 1", "define 2", "request 2", "request 1"));
}

TEST(DefinedGrammars, DropsTheOldestBeyondItsLimits) {
  const auto described = [](DefinedGrammars::Limits limits, std::vector<uint64_t> ids) {
    DefinedGrammars grammars(limits);
    std::vector<ControlMessage> messages;
    for (const uint64_t id : ids) grammars.AppendDefinition(*Grammar(id, 10), &messages);
    return Described(messages);
  };
  EXPECT_THAT(described({.count = 2}, {1, 2, 1, 3, 2}),
              ElementsAre("vocabulary", "define 1", "define 2", "drop 2", "define 3", "drop 1",
                          "define 2"));
  EXPECT_THAT(described({.bytes = 25}, {1, 2, 3}),
              ElementsAre("vocabulary", "define 1", "define 2", "drop 1", "define 3"));
  EXPECT_THAT(described({.bytes = 5}, {1, 2}),
              ElementsAre("vocabulary", "define 1", "drop 1", "define 2"));
}

TEST_F(FrontTest, CutsBothLimitsToTheContext) {
  GenerationSpec spec = Spec();
  spec.sampling.max_new_tokens = 5000;
  spec.sampling.min_new_tokens = 2000;
  const auto left = static_cast<int32_t>(64 - spec.input_ids.size());
  Submit(spec);
  const auto& sent = std::get<EngineRequest>(link.sent.at(0)).sampling;
  EXPECT_EQ(sent.max_new_tokens, left);
  EXPECT_EQ(sent.min_new_tokens, left);
}

TEST_F(FrontTest, BoundsStopStrings) {
  GenerationSpec spec = Spec();
  spec.stop = {""};
  EXPECT_THAT(Refusal(spec), HasSubstr("stop"));
  spec.stop = {std::string(1025, 'a')};
  EXPECT_THAT(Refusal(spec), HasSubstr("1025"));
  spec.stop.assign(65, "a");
  EXPECT_THAT(Refusal(spec), HasSubstr("65"));
  spec.stop.assign(64, std::string(1024, 'a'));
  EXPECT_EQ(Refusal(spec), "accepted");
}

TEST_F(FrontTest, BoundsAlternativesOfAPrompt) {
  Front large(link, *tokenizer,
              {.vocab_size = 512, .context_length = 1 << 20, .cache_tokens = 1 << 20});
  GenerationSpec spec = Spec();
  spec.input_ids.assign(10'000, 1);
  spec.logprob = {.enabled = true, .start = 0, .top = 500};
  EXPECT_THROW(large.Check(spec), Error);
  spec.logprob.start = 9000;
  EXPECT_NO_THROW(large.Check(spec));
}

TEST_F(FrontTest, AStopStringEndsTheRequestOnBothSides) {
  GenerationSpec spec = Spec();
  spec.stop = {"cd"};
  const uint64_t id = Submit(spec);
  Tokens(id, "abcdef");
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].text, "ab");
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(events[0].matched), "cd");
  ASSERT_THAT(link.sent, SizeIs(2));
  EXPECT_EQ(std::get<AbortRequest>(link.sent[1]).id, id);
  EXPECT_EQ(front.open(), 0u);
  Tokens(id, "more");  // output that the ranks sent before they received the abort
  EXPECT_THAT(events, SizeIs(1));
}

// A step with drafts may give tokens after the stop string.
TEST_F(FrontTest, TokensOfTheSameStepAfterAStopStringAreDropped) {
  GenerationSpec spec = Spec();
  spec.stop = {"b"};
  spec.routed_experts = {.enabled = true};
  const uint64_t id = Submit(spec);
  const std::vector<int32_t> tokens = tokenizer->Encode("abc", false);
  ASSERT_THAT(tokens, SizeIs(3));
  front.OnMessage(
      StepOutputs{{{.id = id, .new_tokens = tokens, .routed_experts = {1, 2, 3, 4, 5, 6}}}});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].text, "a");
  EXPECT_EQ(events[0].completion_tokens, 2);
  EXPECT_THAT(events[0].routed_experts, ElementsAre(1, 2, 3, 4));
}

// Text held back after the last token (max_new_tokens) may complete a stop string at the end.
TEST_F(FrontTest, AStopStringCompletedAtTheEndIsAStop) {
  GenerationSpec spec = Spec();
  spec.stop = {"\xEF\xBF\xBD"};  // U+FFFD, which replaces an incomplete character at the end
  const uint64_t id = Submit(spec);
  const std::vector<int32_t> ids = tokenizer->Encode("\xE4\xB8\x93", false);
  ASSERT_GT(ids.size(), 1u);
  front.OnMessage(
      StepOutputs{{{.id = id, .new_tokens = {ids[0]}, .finish = FinishReason::kLength}}});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_EQ(events[0].text, "");
}

// As in vLLM, a stop string that ends within the first min_new_tokens tokens does not match.
TEST_F(FrontTest, StopStringsWaitForTheMinimum) {
  GenerationSpec spec = Spec();
  spec.stop = {"a", "bb"};
  spec.sampling.min_new_tokens = 2;
  const uint64_t id = Submit(spec);
  for (const char* letter : {"a", "b", "b", "a"}) Tokens(id, letter);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].text, "a");  // "bb" ends after the first min_new_tokens tokens
  EXPECT_EQ(std::get<std::string>(events[0].matched), "bb");
  EXPECT_THAT(events[0].tokens, SizeIs(3));
}

TEST_F(FrontTest, AStopStringMayBeASpecialToken) {
  const std::vector<int32_t> special = tokenizer->Encode("<|im_start|>", false);
  ASSERT_THAT(special, SizeIs(1));
  ASSERT_TRUE(tokenizer->IsSpecial(special[0]));
  struct Case {
    std::string stop, shown;
    bool keep, skip;
  };
  for (const Case& c : std::vector<Case>{{"<|im_start|>", "ab", false, true},
                                         {"b<|im_start|>", "a", false, true},
                                         {"<|im_start|>", "ab", false, false},
                                         {"<|im_start|>", "ab<|im_start|>", true, true},
                                         {"im_st", "ab", false, true},
                                         {"im_st", "ab<|", false, false}}) {
    events.clear();
    GenerationSpec spec = Spec();
    spec.stop = {c.stop};
    spec.keep_stop = c.keep;
    spec.skip_special_tokens = c.skip;
    const uint64_t id = Submit(spec);
    Tokens(id, "ab<|im_start|>cd");
    ASSERT_THAT(events, SizeIs(1)) << c.stop;
    EXPECT_EQ(events[0].text, c.shown) << c.stop;
    EXPECT_EQ(std::get<std::string>(events[0].matched), c.stop);
  }
  events.clear();  // a special token outside a stop string stays hidden
  GenerationSpec spec = Spec();
  spec.stop = {"zz"};
  const uint64_t id = Submit(spec);
  Tokens(id, "ab<|im_start|>zz");
  EXPECT_EQ(events.at(0).text, "ab");
}

TEST_F(FrontTest, TokensHaveOffsetsInTheText) {
  GenerationSpec spec = Spec();
  spec.logprob.enabled = true;
  spec.stream_interval = 1;
  const uint64_t id = Submit(spec);
  Tokens(id, "a专");
  Tokens(id, "<|im_start|>b");
  std::vector<int64_t> offsets;
  for (const GenerationEvent& e : events) {
    EXPECT_EQ(e.token_offsets.size(), e.tokens.size());
    offsets.insert(offsets.end(), e.token_offsets.begin(), e.token_offsets.end());
  }
  EXPECT_EQ(offsets.front(), 0);
  EXPECT_EQ(offsets[1], 1);
  EXPECT_EQ(offsets.back(), 2);
}

TEST_F(FrontTest, ANameIsOpenOnce) {
  GenerationSpec spec = Spec();
  spec.name = "a";
  const uint64_t id = Submit(spec);
  try {
    Submit(spec);
    FAIL();
  } catch (const ParameterError& e) {
    EXPECT_EQ(e.parameter, "rid");
    EXPECT_EQ(e.kind(), ErrorKind::kInvalid);
  }
  spec.copy = 1;  // samples of one prompt share the name
  const uint64_t copy = Submit(spec);
  spec.copy = 0;
  for (const uint64_t ended : {id, copy}) {
    EXPECT_THROW(Submit(spec), Error);
    front.OnMessage(
        StepOutputs{{{.id = ended, .new_tokens = {1}, .finish = FinishReason::kLength}}});
  }
  Submit(spec);
}

TEST_F(FrontTest, ABatchIsAbortedByItsName) {
  GenerationSpec spec = Spec();
  spec.batch_name = "all";
  for (const char* name : {"all_0", "all_1"}) {
    spec.name = name;
    Submit(spec);
  }
  link.sent.clear();
  front.AbortNamed("all_1");
  EXPECT_THAT(link.sent, SizeIs(1));
  front.AbortNamed("all");
  EXPECT_THAT(link.sent, SizeIs(3));
}

TEST_F(FrontTest, SaltsReachTheRanks) {
  GenerationSpec spec = Spec();
  spec.cache_salt = "s";
  Submit(spec);
  EXPECT_EQ(std::get<EngineRequest>(link.sent.at(0)).cache_salt, "s");
}

TEST_F(FrontTest, RoutedExpertsArePassedOn) {
  GenerationSpec spec = Spec();
  spec.routed_experts = {.enabled = true};
  const uint64_t id = Submit(spec);
  EXPECT_TRUE(std::get<EngineRequest>(link.sent.at(0)).routed_experts.enabled);
  front.OnMessage(StepOutputs{{{.id = id, .new_tokens = {5}, .routed_experts = {1, 2}}}});
  front.OnMessage(StepOutputs{
      {{.id = id, .new_tokens = {6}, .finish = FinishReason::kLength, .routed_experts = {3, 4}}}});
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].routed_experts, (std::vector<int32_t>{1, 2, 3, 4}));

  spec.routed_experts.start = static_cast<int32_t>(spec.input_ids.size()) + 1;
  EXPECT_THAT(Refusal(spec), HasSubstr("routed_experts_start_len"));
  Front dense(link, *tokenizer,
              {.vocab_size = 512, .context_length = 64, .cache_tokens = 64, .has_experts = false});
  spec.routed_experts.start = 0;
  EXPECT_THROW(dense.Check(spec), Error);
}

TEST_F(FrontTest, AbortsByNameAndAll) {
  GenerationSpec spec = Spec();
  spec.name = "a";
  const uint64_t a = Submit(spec);
  spec.name = "b";
  const uint64_t b = Submit(spec);
  link.sent.clear();
  front.AbortNamed("b");
  ASSERT_THAT(link.sent, SizeIs(1));
  EXPECT_EQ(std::get<AbortRequest>(link.sent[0]).id, b);
  front.AbortAll();
  ASSERT_THAT(link.sent, SizeIs(3));
  EXPECT_EQ(std::get<AbortRequest>(link.sent[1]).id, a);
}

TEST_F(FrontTest, LostRanksAndDrainingRefuseNewRequestsAndEndOpenOnes) {
  Submit(Spec());
  front.StartDraining();
  EXPECT_THROW(Submit(Spec()), Error);
  EXPECT_THAT(events, SizeIs(0));
  front.OnRanksLost("rank 1 died");
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].finish, FinishReason::kError);
  EXPECT_THAT(events[0].error, HasSubstr("rank 1"));
  EXPECT_TRUE(front.WaitUntilIdle(std::chrono::milliseconds(0)));
}

TEST_F(FrontTest, QueriesAboutExpertsAreAnsweredOnce) {
  std::vector<std::string> dumps, loads;
  const auto dump = [&] {
    front.RecordExperts(RecordAction::kDump, [&](const RecordResult& r) {
      dumps.push_back(r.dump.error.empty() ? r.dump.file : r.dump.error);
    });
  };
  const auto load = [&] {
    front.GetExpertLoad([&](const ExpertLoadReport& r) {
      loads.push_back(r.error.empty() ? std::to_string(r.load.passes) : r.error);
    });
  };
  dump();
  dump();
  load();
  ASSERT_THAT(link.sent, SizeIs(3));
  const auto second = std::get<RecordExperts>(link.sent[1]);
  EXPECT_EQ(second.action, RecordAction::kDump);
  const uint64_t third = std::get<GetExpertLoad>(link.sent[2]).ticket;
  for (int time = 0; time < 2; ++time) {  // the second time no callback is registered
    front.OnMessage(RecordResult{.ticket = second.ticket, .dump = {.file = "b"}});
    front.OnMessage(ExpertLoadReport{.ticket = third, .load = {.passes = 7}});
  }
  EXPECT_THAT(dumps, ElementsAre("b"));
  EXPECT_THAT(loads, ElementsAre("7"));

  load();
  front.OnRanksLost("rank 1 died");
  EXPECT_THAT(dumps, ElementsAre("b", "rank 1 died"));
  EXPECT_THAT(loads, ElementsAre("7", "rank 1 died"));
  EXPECT_THROW(dump(), Error);
  EXPECT_THROW(load(), Error);
}

TEST_F(FrontTest, ProfilesAreAnsweredOnce) {
  std::vector<std::string> files, errors;
  const auto take = [&](const ProfileReport& report) {
    files.insert(files.end(), report.result.files.begin(), report.result.files.end());
    if (!report.result.error.empty()) errors.push_back(report.result.error);
  };
  front.StartProfile({.dir = "/d", .name = "n"}, take);
  front.StopProfile(take);
  ASSERT_THAT(link.sent, SizeIs(2));
  EXPECT_EQ(std::get<StartProfile>(link.sent[0]).options.name, "n");
  const uint64_t ticket = std::get<StopProfile>(link.sent[1]).ticket;
  EXPECT_NE(ticket, std::get<StartProfile>(link.sent[0]).ticket);
  for (int time = 0; time < 2; ++time)  // the second time no callback is registered
    front.OnMessage(ProfileReport{.ticket = ticket, .result = {.files = {"a"}}});
  EXPECT_THAT(files, ElementsAre("a"));
  front.OnRanksLost("rank 1 died");
  EXPECT_THAT(errors, ElementsAre("rank 1 died"));
}

TEST_F(FrontTest, CountsRequestsByTheirEnd) {
  using metrics::End;
  metrics::RequestMetrics& counted = front.request_metrics();
  GenerationSpec spec = Spec();
  spec.stop = {"cd"};
  const auto prompt = spec.input_ids.size();
  const uint64_t stopped = Submit(spec), aborted = Submit(Spec()), failed = Submit(Spec());
  EXPECT_EQ(counted.submitted(), 3u);
  const auto tokens = tokenizer->Encode("abcdef", false);
  front.OnMessage(StepOutputs{{{.id = stopped, .new_tokens = tokens, .cached_tokens = 1}}});
  EXPECT_EQ(counted.prompt_tokens(), prompt);
  EXPECT_EQ(counted.cached_tokens(), 1u);
  // Tokens after the stop string are not part of the response.
  EXPECT_EQ(counted.generation_tokens(), static_cast<uint64_t>(events[0].completion_tokens));
  EXPECT_LT(counted.generation_tokens(), tokens.size());
  front.OnMessage(StepOutputs{{{.id = aborted, .finish = FinishReason::kAbort}}});
  front.OnMessage(StepOutputs{{{.id = failed, .finish = FinishReason::kError, .error = "why"}}});
  Submit(Spec());
  front.OnRanksLost("lost");
  EXPECT_EQ(counted.ended(End::kStop), 1u);
  EXPECT_EQ(counted.ended(End::kAbort), 1u);
  EXPECT_EQ(counted.ended(End::kError), 2u);
  EXPECT_EQ(counted.ended(End::kLength) + counted.ended(End::kTimeout), 0u);
}

TEST_F(FrontTest, CountsARequestThatWaitedTooLongAsATimeout) {
  Front impatient(link, *tokenizer,
                  {.vocab_size = 512,
                   .context_length = 64,
                   .cache_tokens = 1024,
                   .queue_timeout = std::chrono::duration<double>(1e-9)});
  const uint64_t id = impatient.Submit(Spec(), [](const GenerationEvent&) {});
  impatient.AbortOverdue();
  impatient.OnMessage(StepOutputs{{{.id = id, .finish = FinishReason::kAbort}}});
  EXPECT_EQ(impatient.request_metrics().ended(metrics::End::kTimeout), 1u);
  EXPECT_EQ(impatient.request_metrics().ended(metrics::End::kAbort), 0u);
}

TEST_F(FrontTest, DoesNotCountTheServersOwnRequests) {
  GenerationSpec spec = Spec();
  spec.measured = false;
  const uint64_t id = Submit(spec);
  front.OnMessage(StepOutputs{{{.id = id, .new_tokens = {1}, .finish = FinishReason::kLength}}});
  const metrics::RequestMetrics& counted = front.request_metrics();
  EXPECT_EQ(counted.submitted() + counted.generation_tokens(), 0u);
  EXPECT_EQ(counted.ended(metrics::End::kLength), 0u);
}

}  // namespace
}  // namespace switchyard
