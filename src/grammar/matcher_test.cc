// Matchers: masks, ends of outputs, rollback, and grammars in the form that ranks receive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "grammar/source.h"
#include "grammar/test_vocabulary.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

int64_t Vocab() { return TestTable().vocab_size(); }

std::vector<uint32_t> MaskOf(GrammarMatcher& matcher) {
  std::vector<uint32_t> mask(MaskWords(Vocab()));
  matcher.FillMask(mask);
  return mask;
}

std::vector<int32_t> AllowedIds(std::span<const uint32_t> mask) {
  std::vector<int32_t> ids;
  for (int64_t id = 0; id < std::ssize(mask) * 32; ++id)
    if (MaskAllows(mask, id)) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

std::vector<std::shared_ptr<const CompiledGrammar>> SomeGrammars() {
  const std::vector<GrammarSource> sources = {
      JsonObjectGrammar(),
      JsonSchemaGrammar(ParseTestJson(
          R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type":
              "array", "items": {"type": "number"}}, "c": {"enum": ["abdabc", "abc", 123]}},
              "additionalProperties": {"type": "integer", "minimum": -5, "maximum": 123}})")),
      JsonSchemaGrammar(ParseTestJson(R"({"type": "string", "pattern": "(ab|abd|é|日本)+c?"})")),
      RegexGrammar("(abc|abdabc)*[^a]{0,3}(true|日本)"),
      EbnfGrammar(
          "root ::= item (\"],\" item)*\nitem ::= \"[\" [a-c]+ \"]\" | \"12\" | item \"-1\""),
      ChoiceGrammar({"ab", "abc", "abdabc", "the end\n", "日本"}),
      StructuralTagGrammar(ParseTestJson(
          R"({"type": "structural_tag", "structures": [{"begin": "<ab>", "schema": {"type": "integer"},
              "end": "</ab>"}], "triggers": ["<ab"]})"))};
  std::vector<std::shared_ptr<const CompiledGrammar>> grammars;
  for (const GrammarSource& source : sources)
    grammars.push_back(CompileGrammar(source, TestTable()));
  return grammars;
}

// A mask has exactly the tokens that the matcher accepts, on random walks through each grammar.
TEST(GrammarMatcher, MasksHaveExactlyTheTokensThatAreAccepted) {
  std::mt19937 random(3);
  const GrammarVocabulary vocabulary = TestVocabulary();
  const auto grammars = SomeGrammars();  // the last one has free text
  for (const auto& grammar : grammars) {
    for (int walk = 0; walk < 6; ++walk) {
      GrammarMatcher matcher(grammar);
      for (int step = 0; step < 25 && !matcher.ended(); ++step) {
        const std::vector<uint32_t> mask = MaskOf(matcher);
        for (int32_t id = 0; id < Vocab(); ++id) {
          const bool accepted = matcher.Accept(id);
          ASSERT_EQ(accepted, MaskAllows(mask, id)) << id << " " << vocabulary.tokens[id];
          if (accepted) matcher.Rollback(1);
        }
        EXPECT_EQ(MaskAllows(mask, kTestEos), matcher.CanEnd());
        EXPECT_FALSE(MaskAllows(mask, kTestMissing));
        EXPECT_TRUE(grammar == grammars.back() || !MaskAllows(mask, kTestSpecial));
        const std::vector<int32_t> ids = AllowedIds(mask);
        ASSERT_FALSE(ids.empty());
        ASSERT_TRUE(matcher.Accept(ids[random() % ids.size()]));
      }
    }
  }
}

TEST(GrammarMatcher, EndsWithAStopTokenWhereTheGrammarMayEnd) {
  GrammarMatcher matcher(CompileGrammar(ChoiceGrammar({"ab", "abc"}), TestTable()));
  EXPECT_FALSE(matcher.CanEnd());
  EXPECT_FALSE(matcher.Accept(kTestEos));
  ASSERT_TRUE(matcher.Accept('a'));
  EXPECT_FALSE(matcher.CanEnd());
  ASSERT_TRUE(matcher.Accept('b'));
  EXPECT_TRUE(matcher.CanEnd());
  EXPECT_THAT(AllowedIds(MaskOf(matcher)), ::testing::ElementsAre('c', kTestEos));
  EXPECT_FALSE(matcher.ended());
  ASSERT_TRUE(matcher.Accept(kTestEos));
  EXPECT_TRUE(matcher.ended());
  EXPECT_FALSE(matcher.Accept('c'));
  EXPECT_EQ(matcher.length(), 3);
  matcher.Rollback(1);
  EXPECT_FALSE(matcher.ended());
  ASSERT_TRUE(matcher.Accept('c'));
  EXPECT_THAT(AllowedIds(MaskOf(matcher)), ::testing::ElementsAre(kTestEos));
}

TEST(GrammarMatcher, RollbackRestoresEveryEarlierMask) {
  std::mt19937 random(5);
  for (const auto& grammar : SomeGrammars()) {
    GrammarMatcher matcher(grammar);
    std::vector<std::vector<uint32_t>> masks;
    while (matcher.length() < 20 && !matcher.ended()) {
      masks.push_back(MaskOf(matcher));
      const std::vector<int32_t> ids = AllowedIds(masks.back());
      ASSERT_TRUE(matcher.Accept(ids[random() % ids.size()]));
    }
    while (matcher.length() > 0) {
      const int64_t back = 1 + static_cast<int64_t>(random() % matcher.length());
      matcher.Rollback(back);
      EXPECT_EQ(MaskOf(matcher), masks[matcher.length()]);
    }
  }
}

TEST(GrammarMatcher, RefusesIdsOutsideOfTheVocabulary) {
  GrammarMatcher matcher(CompileGrammar(RegexGrammar(".*"), TestTable()));
  EXPECT_FALSE(matcher.Accept(-1));
  EXPECT_FALSE(matcher.Accept(static_cast<int32_t>(Vocab())));
  EXPECT_FALSE(matcher.Accept(kTestSpecial));
  EXPECT_EQ(matcher.length(), 0);
}

TEST(GrammarMatcher, AGrammarWithoutContinuationAllowsNoToken) {
  GrammarMatcher matcher(
      CompileGrammar(EbnfGrammar("root ::= \"a\" b\nb ::= b \"c\""), TestTable()));
  ASSERT_TRUE(matcher.Accept('a'));
  std::vector<uint32_t> mask(MaskWords(Vocab()));
  EXPECT_FALSE(matcher.FillMask(mask));
}

TEST(CompiledGrammar, BytesGiveTheSameMasks) {
  std::mt19937 random(8);
  const TokenTable other(GrammarVocabulary::Decode(TestVocabulary().Encode()));
  for (const auto& grammar : SomeGrammars()) {
    const auto copy = CompiledGrammar::FromBytes(grammar->ToBytes(), other);
    EXPECT_EQ(copy->vocab_size(), grammar->vocab_size());
    GrammarMatcher a(grammar), b(copy);
    for (int step = 0; step < 30 && !a.ended(); ++step) {
      const std::vector<uint32_t> mask = MaskOf(a);
      ASSERT_EQ(mask, MaskOf(b));
      const std::vector<int32_t> ids = AllowedIds(mask);
      const int32_t id = ids[random() % ids.size()];
      ASSERT_TRUE(a.Accept(id));
      ASSERT_TRUE(b.Accept(id));
    }
    EXPECT_EQ(a.ended(), b.ended());
  }
}

TEST(CompiledGrammar, MalformedBytesAreRefused) {
  EXPECT_NE(InvalidMessage([] { CompiledGrammar::FromBytes("{", TestTable()); }), "");
  EXPECT_NE(InvalidMessage([] { CompiledGrammar::FromBytes("[]", TestTable()); }), "");
  EXPECT_NE(InvalidMessage([] { GrammarVocabulary::Decode("x"); }), "");
  const std::string bytes = CompileGrammar(RegexGrammar("a"), TestTable())->ToBytes();
  GrammarVocabulary smaller = TestVocabulary();
  smaller.tokens.pop_back();
  const TokenTable table(smaller);
  EXPECT_NE(InvalidMessage([&] { CompiledGrammar::FromBytes(bytes, table); }), "");
}

TEST(TokenTable, NeedsAStopTokenOfTheVocabulary) {
  GrammarVocabulary vocabulary = TestVocabulary();
  vocabulary.stop_ids = {};
  EXPECT_THAT(InvalidMessage([&] { TokenTable table(vocabulary); }), HasSubstr("end-of-sequence"));
  vocabulary.stop_ids = {100000};
  EXPECT_THAT(InvalidMessage([&] { TokenTable table(vocabulary); }), HasSubstr("100000"));
}

}  // namespace
}  // namespace switchyard
