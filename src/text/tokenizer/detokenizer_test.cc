#include "text/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer/tokenizer_test_data.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

using Ids = std::vector<int32_t>;

Ids RandomIds(const Tokenizer& tokenizer, std::mt19937* random) {
  Ids ids((*random)() % 40);
  for (int32_t& id : ids)
    id = static_cast<int32_t>((*random)() % static_cast<unsigned>(tokenizer.VocabSize() + 2));
  return ids;
}

// Pushes `ids` in chunks of random size.
std::string Stream(IncrementalDetokenizer* detokenizer, const Ids& ids, std::mt19937* random) {
  std::string text;
  for (size_t i = 0; i < ids.size();) {
    const size_t count = std::min<size_t>((*random)() % 4, ids.size() - i);
    const std::string piece = detokenizer->Push(std::span(ids).subspan(i, count));
    EXPECT_TRUE(IsValidUtf8(piece));
    text += piece;
    i += count;
  }
  return text + detokenizer->Finish();
}

TEST(IncrementalDetokenizerTest, EqualsDecodeForAnyIdsAndChunks) {
  std::mt19937 random(3);
  for (const char* fixture : {"qwen3", "mixtral", "olmoe"}) {
    const auto tokenizer = Tokenizer::FromFile(FixtureTokenizer(fixture));
    for (int round = 0; round < 500; ++round) {
      const Ids ids = RandomIds(*tokenizer, &random);
      const bool skip = round % 2 == 0;
      IncrementalDetokenizer detokenizer(*tokenizer, skip);
      EXPECT_EQ(Stream(&detokenizer, ids, &random), tokenizer->Decode(ids, skip)) << fixture;
    }
  }
}

TEST(IncrementalDetokenizerTest, EqualsDecodeForEveryGoldenDecoder) {
  std::mt19937 random(4);
  for (const auto& golden : ReadJson(TestData() / "tokenizer" / "goldens.json")) {
    if (!golden["patch"].contains("decoder")) continue;
    SCOPED_TRACE(golden["name"].get<std::string>());
    nlohmann::json json = ReadJson(FixtureTokenizer(golden["fixture"]));
    json.merge_patch(golden["patch"]);
    const auto tokenizer = FromJsonValue(json);
    for (int round = 0; round < 50; ++round) {
      const Ids ids = RandomIds(*tokenizer, &random);
      IncrementalDetokenizer detokenizer(*tokenizer, false);
      EXPECT_EQ(Stream(&detokenizer, ids, &random), tokenizer->Decode(ids, false));
    }
  }
}

TEST(IncrementalDetokenizerTest, AfterAPromptGivesWhatThePromptLacks) {
  std::mt19937 random(5);
  for (const char* fixture : {"qwen3", "mixtral"}) {
    const auto tokenizer = Tokenizer::FromFile(FixtureTokenizer(fixture));
    for (int round = 0; round < 300; ++round) {
      const Ids prompt = RandomIds(*tokenizer, &random);
      const Ids ids = RandomIds(*tokenizer, &random);
      Ids all = prompt;
      all.insert(all.end(), ids.begin(), ids.end());
      const std::string before = tokenizer->Decode(prompt, false);
      const std::string whole = tokenizer->Decode(all, false);
      if (!whole.starts_with(before))
        continue;  // the generation changes the text of the prompt's last bytes
      IncrementalDetokenizer detokenizer(*tokenizer, false, prompt);
      EXPECT_EQ(Stream(&detokenizer, ids, &random), whole.substr(before.size())) << fixture;
    }
  }
}

class MixtralDetokenizerTest : public ::testing::Test {
 protected:
  int32_t Id(std::string_view token) const { return tokenizer_->TokenToId(token).value(); }

  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::FromFile(FixtureTokenizer("mixtral"));
};

TEST_F(MixtralDetokenizerTest, LeadingSpaceGoesOnlyAtTheStartOfAText) {
  const Ids the = {Id("▁the")};
  IncrementalDetokenizer start(*tokenizer_, true);
  EXPECT_EQ(start.Push(the), "the");
  EXPECT_EQ(start.Push(the), " the");
  IncrementalDetokenizer after_prompt(*tokenizer_, true, the);
  EXPECT_EQ(after_prompt.Push(the), " the");
  EXPECT_EQ(after_prompt.Finish(), "");
}

TEST_F(MixtralDetokenizerTest, ByteRunWaitsUntilItCannotChange) {
  IncrementalDetokenizer detokenizer(*tokenizer_, true);
  EXPECT_EQ(detokenizer.Push(Ids{Id("<0xE4>"), Id("<0xB8>"), Id("<0x93>")}), "");
  EXPECT_EQ(detokenizer.Push(Ids{Id("a")}), "专a");
  EXPECT_EQ(detokenizer.Push(Ids{Id("<0xE4>"), Id("<0xB8>")}), "");
  EXPECT_EQ(detokenizer.Finish(), "\uFFFD\uFFFD");
}

TEST_F(MixtralDetokenizerTest, ByteRunOfThePromptIsNotRepeated) {
  const Ids prompt = {Id("a"), Id("<0xE4>"), Id("<0xB8>"), Id("<0x93>")};
  IncrementalDetokenizer plain(*tokenizer_, true, prompt);
  EXPECT_EQ(plain.Push(Ids{Id("▁the")}), " the");
  // The prompt ends within a run of byte tokens, which the generation completes.
  IncrementalDetokenizer completing(*tokenizer_, true, std::span(prompt).first(3));
  EXPECT_EQ(completing.Push(Ids{Id("<0x93>"), Id("▁the")}), "专 the");
}

TEST_F(MixtralDetokenizerTest, ByteRunsOfAPromptMayHaveAnyLength) {
  const Ids a = {Id("<0x41>"), Id("<0x41>"), Id("<0x41>")};
  for (const char* text : {"\u4e2d", "\u4e2d\u6587\u4e2d", "\u4e2d\u6587\u4e2d\u6587",
                           "\U0001f600\U0001f600\U0001f600", "\U0001f600\u4e2d\U0001f600"}) {
    const Ids prompt = tokenizer_->Encode(text, true);
    for (const size_t length : {prompt.size(), prompt.size() - 1, prompt.size() - 2}) {
      const Ids before(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(length));
      IncrementalDetokenizer detokenizer(*tokenizer_, true, before);
      std::string got = detokenizer.Push(a);
      got += detokenizer.Finish();
      Ids all = before;
      all.insert(all.end(), a.begin(), a.end());
      const std::string whole = tokenizer_->Decode(all, true);
      EXPECT_TRUE(whole.ends_with(got)) << text << " " << got;
      if (length == prompt.size()) {
        EXPECT_EQ(got, "AAA") << text;
      }
    }
  }
}

TEST_F(MixtralDetokenizerTest, SkippedTokensAndSpacesDoNotStartTheText) {
  const Ids prompt = {Id("▁the"), Id("▁"), Id("</s>")};
  IncrementalDetokenizer detokenizer(*tokenizer_, true, prompt);
  EXPECT_EQ(detokenizer.Push(Ids{Id("▁the")}), " the");
}

TEST(IncrementalDetokenizerTest, CharacterCompletesAcrossByteLevelTokens) {
  const auto tokenizer = Tokenizer::FromFile(FixtureTokenizer("qwen3"));
  const Ids ids = tokenizer->Encode("\U0001F9D1", false);
  ASSERT_GT(ids.size(), 1u);
  IncrementalDetokenizer whole(*tokenizer, true);
  EXPECT_EQ(whole.Push(std::span(ids).first(ids.size() - 1)), "");
  EXPECT_EQ(whole.Push(std::span(ids).last(1)), "\U0001F9D1");
  IncrementalDetokenizer cut(*tokenizer, true);
  EXPECT_EQ(cut.Push(std::span(ids).first(ids.size() - 1)), "");
  EXPECT_EQ(cut.Finish(), "\uFFFD");
  IncrementalDetokenizer begun_in_prompt(*tokenizer, true, std::span(ids).first(1));
  EXPECT_EQ(begun_in_prompt.Push(std::span(ids).subspan(1)), "\U0001F9D1");
}

}  // namespace
}  // namespace switchyard
