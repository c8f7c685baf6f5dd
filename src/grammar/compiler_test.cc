// Sources other than JSON Schemas, limits of compilation, and the cache.
#include "grammar/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "grammar/test_vocabulary.h"
#include "grammar/tool_calls.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

std::string CompileError(const GrammarSource& source, const GrammarLimits& limits = {}) {
  return InvalidMessage([&] { CompileGrammar(source, TestTable(), limits); });
}

TEST(GrammarSource, RegexMatchesTheWholeOutput) {
  const auto grammar = CompileGrammar(RegexGrammar("(ab|c)+\\d?"), TestTable());
  for (const char* text : {"ab", "abcab", "c7"}) EXPECT_TRUE(Matches(grammar, text)) << text;
  for (const char* text : {"", "a", "ab77", "xab"}) EXPECT_FALSE(Matches(grammar, text)) << text;
  EXPECT_TRUE(Matches(RegexGrammar("^日本+$"), "日本本"));
  EXPECT_TRUE(Matches(RegexGrammar("[a-z]{2,4}"), "abc"));
  EXPECT_FALSE(Matches(RegexGrammar("[a-z]{2,4}"), "abcde"));
}

// An expression over a, b and c with groups, choices and repetitions, and a plain matcher for it.
struct TestRegex {
  std::string text;
  // The positions at which a match can end, given those at which it can begin.
  std::function<std::set<size_t>(std::string_view whole, const std::set<size_t>& begins)> ends;

  bool Matches(std::string_view whole) const { return ends(whole, {0}).contains(whole.size()); }
};

TestRegex Letters(const std::string& text, const std::string& letters) {
  return {text, [letters](std::string_view whole, const std::set<size_t>& begins) {
            std::set<size_t> ends;
            for (const size_t at : begins)
              if (at < whole.size() && letters.find(whole[at]) != std::string::npos)
                ends.insert(at + 1);
            return ends;
          }};
}

TestRegex Either(const TestRegex& a, const TestRegex& b) {
  return {a.text + "|" + b.text, [a, b](std::string_view whole, const std::set<size_t>& begins) {
            std::set<size_t> ends = a.ends(whole, begins);
            ends.merge(b.ends(whole, begins));
            return ends;
          }};
}

TestRegex Then(const TestRegex& a, const TestRegex& b) {
  return {a.text + b.text, [a, b](std::string_view whole, const std::set<size_t>& begins) {
            return b.ends(whole, a.ends(whole, begins));
          }};
}

// `most` −1: no limit.
TestRegex Repeated(const TestRegex& a, const std::string& suffix, int least, int most) {
  return {a.text + suffix, [a, least, most](std::string_view whole, std::set<size_t> begins) {
            std::set<size_t> ends;
            for (int count = 0; most < 0 || count <= most; ++count) {
              if (count >= least && std::ranges::includes(ends, begins)) break;
              if (count >= least) ends.insert(begins.begin(), begins.end());
              begins = a.ends(whole, begins);
            }
            return ends;
          }};
}

TestRegex RandomRegex(std::mt19937& random, int depth) {
  const auto pick = [&](int count) { return static_cast<int>(random() % count); };
  TestRegex all{"", [](std::string_view, const std::set<size_t>& begins) { return begins; }};
  for (int part = pick(3); part >= 0; --part) {
    constexpr std::array<std::pair<const char*, const char*>, 5> kAtoms = {
        {{"a", "a"}, {"b", "b"}, {"c", "c"}, {"[ab]", "ab"}, {"[^a]", "bc"}}};
    constexpr std::array<std::tuple<const char*, int, int>, 10> kRepeats = {{{"", 1, 1},
                                                                             {"", 1, 1},
                                                                             {"?", 0, 1},
                                                                             {"*", 0, -1},
                                                                             {"+", 1, -1},
                                                                             {"{2}", 2, 2},
                                                                             {"{0,2}", 0, 2},
                                                                             {"{1,3}", 1, 3},
                                                                             {"{2,}", 2, -1},
                                                                             {"{1,}", 1, -1}}};
    const auto& [text, letters] = kAtoms[pick(5)];
    TestRegex atom = Letters(text, letters);
    if (depth > 0 && pick(2) == 0) {
      atom = RandomRegex(random, depth - 1);
      if (pick(2) == 0) atom = Either(atom, RandomRegex(random, depth - 1));
      atom.text = "(" + atom.text + ")";
    }
    const auto& [suffix, least, most] = kRepeats[pick(10)];
    all = Then(all, Repeated(atom, suffix, least, most));
  }
  return all;
}

// Compares all texts of at most five letters. XGrammar compiles a regular expression and the
// pattern of a JSON string by different code, so both are tested.
TEST(GrammarSource, RandomRegexesAgreeWithAPlainMatcher) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < 5; ++i)
    for (const char letter : {'a', 'b', 'c'}) texts.push_back(texts[i] + letter);
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const TestRegex regex = RandomRegex(random, 2);
    SCOPED_TRACE(regex.text);
    const auto plain = CompileGrammar(RegexGrammar(regex.text), TestTable());
    const nlohmann::ordered_json schema = {{"type", "string"},
                                           {"pattern", "^(" + regex.text + ")$"}};
    const auto quoted = CompileGrammar(JsonSchemaGrammar(schema), TestTable());
    for (const std::string& text : texts) {
      const bool matches = regex.Matches(text);
      ASSERT_EQ(Matches(plain, text), matches) << text;
      ASSERT_EQ(Matches(quoted, '"' + text + '"'), matches) << text;
    }
  }
}

TEST(GrammarSource, LoopsWithinOptionalAndRepeatedPartsStayThere) {
  const auto matches = [](const char* regex, const char* text) {
    return Matches(RegexGrammar(regex), text);
  };
  for (const char* text : {"", "ab", "abb"}) EXPECT_TRUE(matches("(ab+)?", text)) << text;
  for (const char* text : {"b", "bb", "a"}) EXPECT_FALSE(matches("(ab+)?", text)) << text;
  for (const char* text : {"ad", "abcd", "da", "dabcbc"})
    EXPECT_TRUE(matches("(a(bc)*|d){2,}", text)) << text;
  for (const char* text : {"adbc", "a", "abc"})
    EXPECT_FALSE(matches("(a(bc)*|d){2,}", text)) << text;
}

TEST(GrammarSource, RegexesThatCannotBeHonouredAreRefused) {
  for (const char* regex :
       {"(", "a(?=b)", "(?!a)b", "(a)\\1", "\\bword", "a$b", "[", "a{3,1}", "*a", "\\p{L}"})
    EXPECT_NE(CompileError(RegexGrammar(regex)), "") << regex;
}

TEST(GrammarSource, EbnfAndLarkAreDistinguished) {
  const GrammarSource ebnf = EbnfOrLarkGrammar("root ::= \"a\" [0-9]+");
  EXPECT_EQ(ebnf.kind, GrammarSource::Kind::kEbnf);
  EXPECT_TRUE(Matches(ebnf, "a12"));
  EXPECT_FALSE(Matches(ebnf, "a"));
  const GrammarSource lark = EbnfOrLarkGrammar("start: \"a\" NUMBER\nNUMBER: /[0-9]+/\n");
  EXPECT_EQ(lark.kind, GrammarSource::Kind::kLark);
  EXPECT_TRUE(Matches(lark, "a12"));
  EXPECT_FALSE(Matches(lark, "ab"));
}

TEST(GrammarSource, MalformedGrammarsAreRefused) {
  for (const char* ebnf :
       {"root ::= ", "root ::= x", "other ::= \"a\"", "root = \"a\"", "root ::= (\"a\""})
    EXPECT_NE(CompileError(EbnfGrammar(ebnf)), "") << ebnf;
  EXPECT_NE(CompileError(LarkGrammar("start: missing\n")), "");
}

TEST(GrammarSource, ChoicesAreExact) {
  const std::vector<std::string> choices = {"yes", "no \"quoted\"\\\n", "日本", "y"};
  const auto grammar = CompileGrammar(ChoiceGrammar(choices), TestTable());
  for (const std::string& choice : choices) EXPECT_TRUE(Matches(grammar, choice)) << choice;
  for (const char* text : {"", "ye", "maybe", "yesno"})
    EXPECT_FALSE(Matches(grammar, text)) << text;
  EXPECT_THAT(InvalidMessage([] { ChoiceGrammar({}); }), HasSubstr("empty"));
}

TEST(GrammarSource, StructuralTagsConstrainWhatFollowsATrigger) {
  const GrammarSource source = StructuralTagGrammar(ParseTestJson(
      R"({"type": "structural_tag", "structures": [{"begin": "<f>", "schema": {"type": "integer"},
          "end": "</f>"}], "triggers": ["<f"]})"));
  for (const char* text : {"", "free text", "a <f>12</f> b", "<f>1</f><f>2</f>"})
    EXPECT_TRUE(Matches(source, text)) << text;
  for (const char* text : {"<f>x</f>", "<f>12", "<fx"}) EXPECT_FALSE(Matches(source, text)) << text;
  const GrammarSource whole = StructuralTagGrammar(ParseTestJson(
      R"({"format": {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "[0-9]+"},
          "end": "</a>"}})"));
  EXPECT_TRUE(Matches(whole, "<a>5</a>"));
  EXPECT_FALSE(Matches(whole, "text"));
  EXPECT_THAT(InvalidMessage([] {
                StructuralTagGrammar(ParseTestJson(
                    R"({"structures": [{"begin": "<f>", "schema": {"not": {}}, "end": "</f>"}],
                        "triggers": ["<f"]})"));
              }),
              HasSubstr("not is not supported"));
  const auto ordered = [](const char* order) {
    return InvalidMessage([order] {
      StructuralTagGrammar({{"format",
                             {{"type", "json_schema"},
                              {"json_schema", {{"type", "object"}}},
                              {"any_order", ParseTestJson(order)}}}});
    });
  };
  EXPECT_THAT(ordered("true"), HasSubstr("#/format: any_order is not supported"));
  EXPECT_EQ(ordered("false"), "");
  EXPECT_THAT(InvalidMessage([] { StructuralTagGrammar(ParseTestJson("{}")); }),
              HasSubstr("format"));
  EXPECT_NE(CompileError(StructuralTagGrammar(ParseTestJson(R"({"format": {"type": "poem"}})"))),
            "");
}

TEST(ToolCallGrammar, RequiresCallsWithArgumentsOfTheirTool) {
  const auto tools = ParseTestJson(R"([
      {"type": "function", "function": {"name": "add", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}}, "required": ["a"]}}},
      {"type": "function", "function": {"name": "now"}}])");
  const ToolCallFormat format{.head = R"(<call>{"name": )",
                              .between = R"(, "arguments": )",
                              .tail = "}</call>",
                              .separator = "\n"};
  const std::string add = R"(<call>{"name": "add", "arguments": {"a": 1}}</call>)";
  const std::string now = R"(<call>{"name": "now", "arguments": {}}</call>)";
  const GrammarSource any = ToolCallGrammar(tools, std::nullopt, /*parallel=*/true, format);
  EXPECT_TRUE(Matches(any, add));
  EXPECT_TRUE(Matches(any, add + "\n" + now));
  EXPECT_FALSE(Matches(any, ""));
  EXPECT_FALSE(Matches(any, "text"));
  EXPECT_FALSE(Matches(any, R"(<call>{"name": "add", "arguments": {}}</call>)"));
  const GrammarSource one = ToolCallGrammar(tools, std::nullopt, /*parallel=*/false, format);
  EXPECT_TRUE(Matches(one, now));
  EXPECT_FALSE(Matches(one, add + "\n" + now));
  const GrammarSource named = ToolCallGrammar(tools, "now", /*parallel=*/false, format);
  EXPECT_TRUE(Matches(named, now));
  EXPECT_FALSE(Matches(named, R"(<call>{"name": "now", "arguments": {"a": 1}}</call>)"));
  EXPECT_FALSE(Matches(named, add));
  EXPECT_THAT(InvalidMessage([&] { ToolCallGrammar(tools, "later", true, format); }),
              HasSubstr("later"));
}

TEST(ToolCallGrammar, MarkersMayBeSpecialTokens) {
  const auto tools = ParseTestJson(R"([{"function": {"name": "f"}}])");
  const SpecialTokens special = {{"<special>", kTestSpecial}};
  const GrammarSource source = ToolCallGrammar(tools, std::nullopt, false,
                                               {.head = R"(<special>{"name": )",
                                                .between = R"(, "arguments": )",
                                                .tail = "}!",
                                                .special = special});
  EXPECT_TRUE(MatchesMarked(source, R"(<special>{"name": "f", "arguments": {}}!)"));
  EXPECT_FALSE(MatchesMarked(source, R"({"name": "f", "arguments": {}}!)"));
  // A call format with names without quotes, and with one pair of markers around all calls.
  const GrammarSource named = ToolCallGrammar(tools, "f", true,
                                              {.open = "<special>[",
                                               .head = "call:",
                                               .between = "<special>",
                                               .tail = "<special>.",
                                               .close = "]<special>",
                                               .quoted = false,
                                               .indexed = true,
                                               .special = special});
  EXPECT_TRUE(MatchesMarked(
      named, R"(<special>[call:f:0<special>{}<special>.call:f:1<special>{}<special>.]<special>)"));
  EXPECT_FALSE(MatchesMarked(named, R"(<special>[call:f<special>{}<special>.]<special>)"));
  EXPECT_FALSE(MatchesMarked(named, R"(<special>[]<special>)"));
}

TEST(ToolCallGrammar, WhiteSpaceOfArgumentsIsLimited) {
  const auto tools = ParseTestJson(R"([{"function": {"name": "f", "parameters": {}}}])");
  const auto call = [&](JsonSpace space) {
    return ToolCallGrammar(tools, "f", false, {.head = "call ", .between = " ", .quoted = false},
                           space);
  };
  EXPECT_TRUE(Matches(call(JsonSpace::kAny), R"(call f {   "a" :  1})"));
  EXPECT_TRUE(Matches(call(JsonSpace::kPython), R"(call f {"a": 1})"));
  EXPECT_FALSE(Matches(call(JsonSpace::kPython), R"(call f {  "a": 1})"));
}

// GrammarSource::prefix and opening come before the grammar. GrammarSource::alternative comes in
// place of opening and grammar.
TEST(GrammarSource, PrefixesAndAlternativesAreAdded) {
  const auto tag = [](const nlohmann::ordered_json& elements) {
    return nlohmann::ordered_json({{"type", "structural_tag"}, {"format", SequenceOf(elements)}})
        .dump();
  };
  for (const SpecialTokens& special :
       {SpecialTokens{}, SpecialTokens{{"<special>", kTestSpecial}}}) {
    auto thought = TextUntil({"<special>"}, special);
    for (const auto& element : MarkedText("<special>", special)) thought.push_back(element);
    auto call = MarkedText("<special>", special);
    call.push_back({{"type", "any_text"}});
    GrammarSource source = JsonObjectGrammar();
    source.prefix = tag(thought);
    const auto matches = [&](std::string_view text) {
      return special.empty() ? Matches(source, text) : MatchesMarked(source, text);
    };
    EXPECT_TRUE(matches("a {thought}<special>{}"));
    EXPECT_TRUE(matches("<special>{}"));
    EXPECT_FALSE(matches("{}"));
    EXPECT_FALSE(matches("a<special>b"));
    EXPECT_FALSE(matches("a<special>{}<special>{}"));
    EXPECT_FALSE(matches("a<special><special>b"));
    source.alternative = tag(call);
    EXPECT_TRUE(matches("a<special>{}"));
    EXPECT_TRUE(matches("a<special><special>b"));
    EXPECT_FALSE(matches("a<special>b"));
    source.opening = tag(MarkedText("b<special>", special));
    EXPECT_TRUE(matches("a<special>b<special>{}"));
    EXPECT_TRUE(matches("a<special><special>b"));
    EXPECT_FALSE(matches("a<special>{}"));
  }
}

// The free text of a prefix allows any token, but no stop token.
TEST(GrammarSource, StopTokensAreNotPartOfAnyText) {
  for (const SpecialTokens& special :
       {SpecialTokens{}, SpecialTokens{{"<special>", kTestSpecial}}}) {
    GrammarSource source = JsonObjectGrammar();
    source.prefix =
        nlohmann::ordered_json(
            {{"type", "structural_tag"}, {"format", SequenceOf(TextUntil({"<special>"}, special))}})
            .dump();
    GrammarMatcher matcher(CompileGrammar(source, TestTable()));
    std::vector<uint32_t> mask(MaskWords(TestTable().vocab_size()));
    ASSERT_TRUE(matcher.FillMask(mask));
    EXPECT_FALSE(MaskAllows(mask, kTestEos));
    EXPECT_FALSE(MaskAllows(mask, kTestMissing));
    EXPECT_TRUE(MaskAllows(mask, 'x'));
    EXPECT_FALSE(matcher.Accept(kTestEos));
    EXPECT_TRUE(matcher.Accept('x'));
  }
}

TEST(CompileGrammar, LimitsAreNamed) {
  const GrammarSource source = RegexGrammar("(abc|[a-z]{3}|true)*");
  EXPECT_THAT(CompileError(source, {.source_bytes = 5}), HasSubstr("bytes"));
  EXPECT_THAT(CompileError(source, {.time = std::chrono::milliseconds(-1)}), HasSubstr("complex"));
  EXPECT_THAT(CompileError(source, {.mask_bytes = 1}), HasSubstr("large"));
  EXPECT_EQ(CompileError(source), "");
}

TEST(GrammarCache, KeepsRecentGrammarsWithinItsSize) {
  GrammarCache cache(TestVocabulary());
  const auto first = cache.Get(RegexGrammar("a+"));
  EXPECT_EQ(cache.Get(RegexGrammar("a+")), first);
  EXPECT_NE(cache.Get(RegexGrammar("b+"))->id, first->id);
  EXPECT_EQ(cache.compiled(), 2);
  EXPECT_GE(cache.bytes(), first->memory_bytes());
  EXPECT_EQ(GrammarVocabulary::Decode(*first->vocabulary).tokens, TestVocabulary().tokens);

  GrammarCache small(TestVocabulary(), {}, /*cache_bytes=*/1);
  for (int round = 0; round < 2; ++round)
    for (const char* regex : {"a", "b"}) small.Get(RegexGrammar(regex));
  EXPECT_EQ(small.compiled(), 4);
  const auto last = small.Get(RegexGrammar("b"));  // the most recent one stays
  EXPECT_EQ(small.compiled(), 4);
  EXPECT_EQ(small.bytes(), last->memory_bytes() + 1);
}

TEST(GrammarCache, ErrorsAreNotKept) {
  GrammarCache cache(TestVocabulary());
  for (int i = 0; i < 2; ++i) EXPECT_NE(InvalidMessage([&] { cache.Get(RegexGrammar("(")); }), "");
  EXPECT_EQ(cache.compiled(), 2);
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST(GrammarCache, ThreadsShareOneCompilation) {
  GrammarCache cache(TestVocabulary());
  std::vector<std::shared_ptr<const ReadyGrammar>> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (auto& result : results)
    threads.emplace_back([&] { result = cache.Get(JsonObjectGrammar()); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
  EXPECT_EQ(cache.compiled(), 1);
}

}  // namespace
}  // namespace switchyard
