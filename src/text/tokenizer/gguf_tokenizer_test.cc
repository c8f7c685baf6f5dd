#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer_reader.h"
#include "text/tokenizer/tokenizer_test_data.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

struct Case {
  const char *file, *fixture;
};
constexpr Case kCases[] = {{"llama_bf16", "llama"},
                           {"olmoe_q8_0", "olmoe"},
                           {"mixtral_q4_0", "mixtral"},
                           {"gpt_oss_mxfp4", "gpt_oss"}};

std::filesystem::path GgufFile(const std::string& name) {
  return TestData() / "gguf" / (name + ".gguf");
}

TEST(GgufTokenizer, GivesTheReferencesOfTheFixture) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.file);
    const auto tokenizer = Tokenizer::FromDirectory(GgufFile(c.file));
    const nlohmann::json reference =
        ReadJson(TestData() / "fixtures" / c.fixture / "reference.json");
    for (const auto& item : reference["encode"]) {
      const Ids ids = item["ids"];
      EXPECT_EQ(tokenizer->Encode(item["text"].get<std::string>(), false), ids) << item["text"];
      EXPECT_EQ(tokenizer->Decode(ids, false), item["decoded"].get<std::string>());
    }
    for (const auto& item : reference["encode_special"])
      EXPECT_EQ(tokenizer->Encode(item["text"].get<std::string>(), true), item["ids"].get<Ids>())
          << item["text"];
  }
}

TEST(GgufTokenizer, HasTheTokensAndTemplateOfTheFixture) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.file);
    const auto dir = TestData() / "fixtures" / c.fixture;
    const auto a = Tokenizer::FromDirectory(dir), b = Tokenizer::FromDirectory(GgufFile(c.file));
    EXPECT_EQ(a->VocabSize(), b->VocabSize());
    for (const char* name : {"bos_token", "eos_token", "pad_token"})
      EXPECT_EQ(a->NamedToken(name), b->NamedToken(name)) << name;
    for (int32_t id = 0; id < a->VocabSize(); ++id) {
      EXPECT_EQ(a->IdToToken(id), b->IdToToken(id));
      EXPECT_EQ(a->IsSpecial(id), b->IsSpecial(id)) << id;
    }
    EXPECT_EQ(ChatTemplate::FromDirectory(dir).Source(false),
              ChatTemplate::FromDirectory(GgufFile(c.file)).Source(false));
  }
}

TEST(GgufTokenizer, IsMissingFromAFileWithoutVocabulary) {
  EXPECT_FALSE(Tokenizer::HasFiles(GgufFile("k_types")));
  EXPECT_TRUE(Tokenizer::HasFiles(GgufFile("olmoe_q8_0")));
  EXPECT_THAT(ErrorOf([] { Tokenizer::FromDirectory(GgufFile("k_types")); }),
              HasSubstr("tokenizer.ggml.model is missing"));
}

// Every pre-tokenizer compiles and splits a text into words that together are the text.
TEST(GgufPreTokenizer, EveryNameWorks) {
  EXPECT_FALSE(FindGgufPreTokenizer("default"));
  EXPECT_FALSE(FindGgufPreTokenizer("tekken"));
  std::string names = GgufPreTokenizerNames();
  int count = 0;
  for (size_t at = 0; at < names.size(); ++count) {
    const size_t end = std::min(names.find(", ", at), names.size());
    const std::string name = names.substr(at, end - at);
    at = end + 2;
    const auto pre = FindGgufPreTokenizer(name);
    ASSERT_TRUE(pre) << name;
    nlohmann::json json = ReadJson(FixtureTokenizer("qwen3"));
    json["pre_tokenizer"] = pre->pre_tokenizer;
    json["normalizer"] = pre->normalizer;
    const auto tokenizer = FromJsonValue(json);
    const std::string text = "It's 12345 naïve Ελληνικά 漢字かな, x==y;\n\n  end ";
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, false), false), text) << name;
  }
  EXPECT_EQ(count, 15);
}

}  // namespace
}  // namespace switchyard
