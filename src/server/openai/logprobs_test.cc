#include <gtest/gtest.h>

#include <limits>

#include "server/front/token_text.h"
#include "server/openai/response_parts.h"

namespace switchyard::openai {
namespace {

class LogprobsTest : public ::testing::Test {
 protected:
  std::vector<int32_t> Ids(const std::string& text) const { return tokenizer->Encode(text, false); }
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::FromFile(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe/tokenizer.json");
};

TEST_F(LogprobsTest, TheTokenIsAlwaysAmongItsAlternatives) {
  const std::vector<PositionLogprobs> positions = {
      {.logprob = -3.0f, .token = 40, .top = {{41, -1.0f}, {42, -2.0f}}}};
  for (const int32_t top : {0, 1, 2}) {
    CompletionLogprobs lists({*tokenizer}, top);
    lists.Add(positions, std::vector<int64_t>{2}, 5);
    const Json json = lists.Take();
    EXPECT_EQ(json["text_offset"][0], 7);
    const std::string own = json["tokens"][0];
    EXPECT_EQ(json["top_logprobs"][0].size(), static_cast<size_t>(top) + 1);
    EXPECT_EQ(json["top_logprobs"][0][own], -3.0f);
    const Json chat = ChatLogprobs({*tokenizer}, positions, top)["content"][0];
    EXPECT_EQ(chat["top_logprobs"].size(), static_cast<size_t>(top) + 1);
    EXPECT_EQ(chat["top_logprobs"].back()["logprob"], -3.0f);
  }
  EXPECT_TRUE(ChatLogprobs({*tokenizer}, positions, -1)["content"][0]["top_logprobs"].empty());
}

// Several tokens may have the same text, but each gets its own key.
TEST_F(LogprobsTest, KeysOfTokensDiffer) {
  PositionLogprobs p{.logprob = -0.5f};
  for (int32_t id = 0; id < tokenizer->VocabSize(); ++id) p.top.push_back({id, -1.0f - id});
  for (int32_t id = 0; id < tokenizer->VocabSize(); ++id) {
    p.token = id;
    p.logprob = p.top[id].logprob;
    CompletionLogprobs lists({*tokenizer}, tokenizer->VocabSize());
    lists.Add({p}, std::vector<int64_t>{0}, 0);
    const Json json = lists.Take();
    ASSERT_EQ(json["top_logprobs"][0].size(), p.top.size());
    ASSERT_EQ(json["top_logprobs"][0][json["tokens"][0].get<std::string>()], p.logprob);
    if (id > 3) id += 13;
  }
}

TEST_F(LogprobsTest, PartialCharactersHaveTheirBytes) {
  const int32_t part = Ids("\U0001F9D1")[0];
  const std::vector<PositionLogprobs> positions = {{.logprob = -1.0f, .token = part}};
  const Json chat = ChatLogprobs({*tokenizer}, positions, -1)["content"][0];
  EXPECT_EQ(chat["bytes"][0], 0xF0);
  EXPECT_EQ(chat["token"], "\uFFFD");
  CompletionLogprobs lists({*tokenizer}, 0);
  lists.Add(positions, std::vector<int64_t>{0}, 0);
  EXPECT_EQ(lists.Take()["tokens"][0], "\uFFFD");
  CompletionLogprobs ids({*tokenizer, true}, 0);
  ids.Add(positions, std::vector<int64_t>{0}, 0);
  EXPECT_EQ(ids.Take()["tokens"][0], fmt::format("token_id:{}", part));
}

TEST_F(LogprobsTest, PromptLogprobsHaveRanks) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Json list =
      PromptLogprobs(*tokenizer,
                     {{.logprob = nan, .token = 5},
                      {.logprob = -4.0f, .token = 9, .rank = 17, .top = {{7, -1.0f}, {8, -2.0f}}}},
                     1);
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1].size(), 2u);
  EXPECT_EQ(list[1]["9"]["rank"], 17);
  EXPECT_EQ(list[1]["7"]["rank"], 1);
  EXPECT_EQ(list[1]["7"]["decoded_token"], tokenizer->TokenText(7));
}

TEST_F(LogprobsTest, PromptsAreShownAsTheyWereSent) {
  const std::string text = "<|im_start|>user\nwhat is 专家? \U0001F9D1<|im_end|>";
  const std::vector<int32_t> ids = Ids(text);
  const PromptText sent = PromptSentAsText(*tokenizer, ids, text);
  EXPECT_EQ(sent.text, text);
  const PromptText by_ids = PromptSentAsIds(*tokenizer, ids);
  EXPECT_EQ(by_ids.text, text);
  EXPECT_EQ(sent.offsets, by_ids.offsets);
  EXPECT_EQ(sent.length, by_ids.length);
  // A token that the tokenizer prepends covers no characters of the text. Normalization does not
  // change the offsets of later tokens.
  std::vector<int32_t> with_start = Ids("<|im_start|>");
  for (const int32_t id : Ids("caf\u00e9 is open")) with_start.push_back(id);
  const PromptText changed = PromptSentAsText(*tokenizer, with_start, "cafe\u0301 is open");
  EXPECT_EQ(changed.text, "cafe\u0301 is open");
  EXPECT_EQ(changed.length, 13);
  EXPECT_EQ(changed.offsets.front(), 0);
  const int32_t last = with_start.back();
  EXPECT_EQ(changed.offsets.back(), 13 - static_cast<int64_t>(TokenBytes(*tokenizer, last).size()));
}

}  // namespace
}  // namespace switchyard::openai
