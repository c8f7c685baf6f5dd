// The bytes of tokens, for each kind of tokenizer.
#include "server/front/grammars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

const std::string kTexts[] = {R"({"name": "Ann", "tags": ["a", "b"], "n": -1.5e3})",
                              "Once upon a time", "été 日本 \xf0\x9f\x98\x80!", "a\tb\n  c",
                              "x = [1, 2, 3];\n"};

struct Kind {
  const char* files;
  const char* prefix;  // prefix that the tokenizer adds to a text
};

// The bytes of a text's tokens are the bytes of the text.
TEST(GrammarVocabulary, TokensHaveTheBytesThatTheyAddToAText) {
  const Kind kKinds[] = {{"fixtures/qwen3_moe", ""},
                         {"fixtures/deepseek_v3", ""},
                         {"fixtures/gpt_oss", ""},
                         {"fixtures/mixtral", " "},
                         {"tokenizer/directories/tiktoken", ""},
                         {"tokenizer/directories/spm_bpe", " "},
                         {"tokenizer/directories/spm_unigram_bytes", ""}};
  for (const auto& [files, prefix] : kKinds) {
    SCOPED_TRACE(files);
    const auto tokenizer = Tokenizer::FromDirectory(std::string(SWITCHYARD_TEST_DATA "/") + files);
    const int64_t size = tokenizer->VocabSize() + 7;  // models pad their vocabulary
    const GrammarVocabulary vocabulary = VocabularyOf(*tokenizer, size, {0});
    ASSERT_EQ(std::ssize(vocabulary.tokens), size);
    for (int64_t id = tokenizer->VocabSize(); id < size; ++id) EXPECT_EQ(vocabulary.tokens[id], "");
    for (const std::string& text : kTexts) {
      std::string bytes;
      for (const int32_t id : tokenizer->Encode(text, false)) bytes += vocabulary.tokens.at(id);
      EXPECT_EQ(bytes, prefix + text);
    }
  }
}

TEST(GrammarVocabulary, SpecialTokensMatchNoText) {
  const auto tokenizer = Tokenizer::FromDirectory(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe");
  const GrammarVocabulary vocabulary = VocabularyOf(*tokenizer, tokenizer->VocabSize(), {0});
  int special = 0;
  for (int32_t id = 0; id < tokenizer->VocabSize(); ++id) {
    if (!tokenizer->IsSpecial(id)) continue;
    ++special;
    EXPECT_EQ(vocabulary.tokens[id], SpecialTokenBytes(tokenizer->IdToToken(id)));
  }
  EXPECT_GT(special, 0);
  // A model may have fewer ids than its tokenizer; the vocabulary then has only the ids of the
  // model.
  EXPECT_EQ(VocabularyOf(*tokenizer, 100, {0}).tokens.size(), 100u);
}

}  // namespace
}  // namespace switchyard
