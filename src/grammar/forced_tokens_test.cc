// The text and the tokens that a grammar forces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "grammar/compiled_grammar.h"
#include "grammar/test_vocabulary.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Ids = std::vector<int32_t>;

int32_t IdOf(std::string_view token) {
  const GrammarVocabulary vocabulary = TestVocabulary();
  const auto found = std::ranges::find(vocabulary.tokens, token);
  EXPECT_NE(found, vocabulary.tokens.end()) << token;
  return static_cast<int32_t>(found - vocabulary.tokens.begin());
}

Ids IdsOf(std::initializer_list<std::string_view> tokens) {
  Ids ids;
  for (const std::string_view token : tokens) ids.push_back(IdOf(token));
  return ids;
}

GrammarMatcher MatcherOf(const GrammarSource& source) {
  return GrammarMatcher(CompileGrammar(source, TestTable()));
}

// A matcher after the bytes of `text`.
GrammarMatcher MatcherAfter(const GrammarSource& source, std::string_view text) {
  GrammarMatcher matcher = MatcherOf(source);
  for (const char c : text) EXPECT_TRUE(matcher.Accept(static_cast<unsigned char>(c))) << text;
  return matcher;
}

Ids Forced(GrammarMatcher& matcher, int64_t most = 100) {
  std::vector<uint32_t> mask;
  return ForcedTokens(matcher, most, &mask);
}

std::vector<uint32_t> MaskOf(GrammarMatcher& matcher) {
  std::vector<uint32_t> mask(MaskWords(TestTable().vocab_size()));
  matcher.FillMask(mask);
  return mask;
}

GrammarSource Schema(JsonSpace space = JsonSpace::kNone) {
  return JsonSchemaGrammar(ParseTestJson(R"({"type": "object", "properties": {
      "name": {"const": "abdabc"}, "kind": {"enum": ["true", "the "]}, "n": {"type": "integer"}},
      "required": ["name", "kind", "n"], "additionalProperties": false})"),
                           space);
}

TEST(ForcedText, IsTheTextOfRequiredKeysConstantsAndEnums) {
  const auto after = [](std::string_view text) {
    return MatcherAfter(Schema(), text).ForcedText();
  };
  const std::string begin = R"({"name":"abdabc","kind":"t)";
  EXPECT_EQ(after(""), begin);
  EXPECT_EQ(after(R"({"na)"), begin.substr(4));
  EXPECT_EQ(after(begin), "");  // "true" and "the" may follow
  EXPECT_EQ(after(begin + "r"), R"(ue","n":)");
  EXPECT_EQ(after(begin + R"(rue","n":)"), "");
  EXPECT_EQ(after(begin + R"(rue","n":1)"), "");
  EXPECT_EQ(after(begin + R"(rue","n":1})"), "");  // the output is complete
  EXPECT_EQ(MatcherAfter(Schema(JsonSpace::kAny), R"({"n)").ForcedText(), R"(ame")");
}

TEST(ForcedText, HasABoundInEndlessText) {
  EXPECT_EQ(MatcherOf(RegexGrammar("a{3000}")).ForcedText(),
            std::string(GrammarMatcher::kMostForcedText, 'a'));
  GrammarMatcher endless = MatcherOf(EbnfGrammar("root ::= \"ab\" b\nb ::= \"c\" b"));
  EXPECT_EQ(endless.ForcedText().size(), GrammarMatcher::kMostForcedText);
  EXPECT_EQ(Forced(endless, 7).size(), 7u);
}

// All grammars have tokens of single bytes here. So a text is forced exactly while one byte is
// allowed and the output cannot end.
TEST(ForcedText, ContinuesWhileOneByteIsAllowed) {
  std::mt19937 random(4);
  for (const GrammarSource& source :
       {Schema(), Schema(JsonSpace::kPython), JsonObjectGrammar(),
        RegexGrammar("(abc|abdabc)*x[^a]{0,3}(true|日本)"),
        EbnfGrammar("root ::= item (\"],\" item)*\nitem ::= \"[\" [a-c]+ \"]\" | \"12\""),
        ChoiceGrammar({"ab", "abc", "abdabc", "the end\n", "日本", "日光"})}) {
    for (int walk = 0; walk < 8; ++walk) {
      GrammarMatcher matcher = MatcherOf(source);
      for (int step = 0; step < 30 && !matcher.ended(); ++step) {
        const std::string text = matcher.ForcedText();
        ASSERT_LT(text.size(), GrammarMatcher::kMostForcedText);
        Ids bytes;
        for (size_t i = 0; i <= text.size(); ++i) {
          const std::vector<uint32_t> mask = MaskOf(matcher);
          bytes.clear();
          for (int32_t id = 0; id < 256; ++id)
            if (MaskAllows(mask, id)) bytes.push_back(id);
          if (i == text.size()) break;
          ASSERT_THAT(bytes, ElementsAre(static_cast<unsigned char>(text[i])));
          ASSERT_FALSE(matcher.CanEnd());
          ASSERT_TRUE(matcher.Accept(bytes[0]));
        }
        ASSERT_TRUE(bytes.size() != 1 || matcher.CanEnd());
        if (bytes.empty()) break;
        ASSERT_TRUE(matcher.Accept(bytes[random() % bytes.size()]));
      }
    }
  }
}

TEST(ForcedTokens, AreTheLongestTokensOfTheText) {
  GrammarMatcher matcher = MatcherOf(Schema());
  const Ids want = IdsOf({"{\"", "n", "a", "m", "e", "\"", ":", "\"", "abdabc", "\",\"", "k", "i",
                          "n", "d", "\"", ":", "\""});
  EXPECT_EQ(Forced(matcher), want);  // without "t": the token "the " begins with it
  EXPECT_EQ(Forced(matcher, 3), Ids(want.begin(), want.begin() + 3));
  EXPECT_EQ(Forced(matcher, 0), Ids());
  GrammarMatcher value = MatcherAfter(Schema(), R"({"name":"abdabc","kind":"tr)");
  EXPECT_EQ(Forced(value), IdsOf({"u", "e", "\",\"", "n", "\"", ":"}));
}

TEST(ForcedTokens, DoNotEndWithATokenThatMayBeLonger) {
  GrammarMatcher goes_on = MatcherOf(RegexGrammar("x?ab(c|dabc)"));
  ASSERT_TRUE(goes_on.Accept('x'));
  EXPECT_EQ(goes_on.ForcedText(), "ab");
  EXPECT_THAT(Forced(goes_on), IsEmpty());  // abc and abdabc are tokens too
  GrammarMatcher ends = MatcherOf(RegexGrammar("ab[xyz]"));
  EXPECT_EQ(Forced(ends), IdsOf({"ab"}));
}

TEST(ForcedTokens, IncludeTokensWithoutTextButNoStopToken) {
  const GrammarSource source = StructuralTagGrammar(ParseTestJson(
      R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [
          {"type": "const_string", "value": "ab"}, {"type": "token", "token": 257},
          {"type": "const_string", "value": "true12"}]}})"));
  GrammarMatcher matcher = MatcherOf(source);
  const Ids want = {IdOf("ab"), kTestSpecial, IdOf("true"), IdOf("12")};
  EXPECT_EQ(Forced(matcher), want);
  ASSERT_TRUE(matcher.Accept(want[0]));
  EXPECT_EQ(Forced(matcher, 1), Ids{kTestSpecial});
  for (size_t i = 1; i < want.size(); ++i) ASSERT_TRUE(matcher.Accept(want[i]));
  EXPECT_THAT(Forced(matcher), IsEmpty());
  ASSERT_TRUE(matcher.Accept(kTestEos));
  EXPECT_THAT(Forced(matcher), IsEmpty());
}

TEST(ForcedTokens, PreferPiecesToTokensOfSingleBytes) {
  GrammarVocabulary vocabulary = TestVocabulary();
  vocabulary.tokens.emplace_back("a");  // the same bytes as id 97
  const TokenTable table(vocabulary);
  GrammarMatcher matcher(CompileGrammar(RegexGrammar("a[xyz]"), table));
  EXPECT_EQ(Forced(matcher), Ids{static_cast<int32_t>(table.vocab_size()) - 1});
}

// XGrammar does not restore a matcher in which a rule ended at its budget.
TEST(ForcedTokens, AreEmptyWithBudgets) {
  for (const char* budget : {"max_tokens=4", "max_chars=4"}) {
    GrammarMatcher matcher = MatcherOf(
        EbnfGrammar(fmt::format("root ::= \"abc\" text \"12\"\ntext[{}] ::= [a-z]*\n", budget)));
    EXPECT_TRUE(matcher.grammar().has_budgets());
    EXPECT_EQ(matcher.ForcedText(), "abc");
    EXPECT_THAT(Forced(matcher), IsEmpty());
  }
  EXPECT_FALSE(MatcherOf(EbnfGrammar("root ::= \"max_tokens=4\"")).grammar().has_budgets());
}

// On random walks, ForcedTokens does not change the matcher's state. It returns a mask only if it
// returns no tokens.
TEST(ForcedTokens, LeaveTheMatcherInItsState) {
  std::mt19937 random(6);
  int64_t forced = 0, masks = 0;
  for (const GrammarSource& source :
       {Schema(), Schema(JsonSpace::kPython), Schema(JsonSpace::kAny), JsonObjectGrammar(),
        RegexGrammar("(abc|abdabc)*x[^a]{0,3}(true|日本)"), RegexGrammar("(ab){40}"),
        StructuralTagGrammar(ParseTestJson(
            R"({"type": "structural_tag", "structures": [{"begin": "<ab>", "schema": {"type":
                "integer"}, "end": "</ab>"}], "triggers": ["<ab"]})"))}) {
    const auto grammar = CompileGrammar(source, TestTable());
    for (int walk = 0; walk < 8; ++walk) {
      GrammarMatcher matcher(grammar), plain(grammar);
      for (int step = 0; step < 40 && !plain.ended(); ++step) {
        std::vector<uint32_t> mask;
        const Ids tokens = ForcedTokens(matcher, 1 + static_cast<int64_t>(random() % 9), &mask);
        EXPECT_EQ(matcher.length(), plain.length());
        const std::vector<uint32_t> want = MaskOf(plain);
        EXPECT_TRUE(mask.empty() || (tokens.empty() && mask == want));
        ASSERT_EQ(MaskOf(matcher), want);
        EXPECT_EQ(matcher.ForcedText(), plain.ForcedText());
        forced += std::ssize(tokens);
        masks += mask.empty() ? 0 : 1;
        // Continues with the first forced token, or with a random allowed token.
        Ids allowed;
        for (int32_t id = 0; id < TestTable().vocab_size(); ++id)
          if (MaskAllows(want, id)) allowed.push_back(id);
        ASSERT_FALSE(allowed.empty());
        const int32_t next = tokens.empty() || random() % 3 == 0
                                 ? allowed[random() % allowed.size()]
                                 : tokens.front();
        ASSERT_TRUE(matcher.Accept(next));
        ASSERT_TRUE(plain.Accept(next));
      }
    }
  }
  EXPECT_GT(forced, 200);
  EXPECT_GT(masks, 50);
}

}  // namespace
}  // namespace switchyard
