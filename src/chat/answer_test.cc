#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat/chat_client.h"
#include "core/error.h"

namespace switchyard::chat {
namespace {

TEST(AnswerTest, CollectsTextReasoningAndUsage) {
  Answer answer;
  answer.Take(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})");
  EXPECT_EQ(answer.Take(R"({"choices":[{"delta":{"reasoning_content":"Hm","reasoning":"Hm"}}]})")
                .reasoning,
            "Hm");
  EXPECT_EQ(answer.Take(R"({"choices":[{"delta":{"reasoning":"m."}}]})").reasoning, "m.");
  EXPECT_EQ(answer.Take(R"({"choices":[{"delta":{"content":"Yes"}}]})").content, "Yes");
  answer.Take(R"({"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]})");
  answer.Take(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}})");
  EXPECT_FALSE(answer.done());
  answer.Take("[DONE]");
  EXPECT_TRUE(answer.done());
  EXPECT_EQ(answer.content(), "Yes.");
  EXPECT_EQ(answer.reasoning(), "Hmm.");
  EXPECT_EQ(answer.finish_reason(), "stop");
  EXPECT_EQ(answer.prompt_tokens(), 7);
  EXPECT_EQ(answer.output_tokens(), 3);
}

TEST(AnswerTest, IgnoresFieldsOfOtherTypes) {
  Answer answer;
  for (const char* event :
       {R"({})", R"({"choices":null})", R"({"choices":[3]})", R"({"choices":[{"delta":null}]})",
        R"({"choices":[{"delta":{"content":null,"reasoning_content":[1]},"finish_reason":null}]})",
        R"({"usage":null,"choices":[]})", R"({"error":null,"choices":[]})"})
    answer.Take(event);
  EXPECT_EQ(answer.content(), "");
  EXPECT_EQ(answer.finish_reason(), "");
  EXPECT_EQ(answer.output_tokens(), -1);
}

TEST(AnswerTest, ErrorsOfTheServerAreThrown) {
  Answer answer;
  for (const char* event : {R"({"error":{"message":"a rank died"}})", "no JSON", "[1]"})
    EXPECT_THROW(answer.Take(event), Error) << event;
}

TEST(AnswerTest, FindsTheMessageOfAnErrorBody) {
  EXPECT_EQ(ErrorMessageOf(R"({"error":{"message":"too long","code":400}})"), "too long");
  EXPECT_EQ(ErrorMessageOf(R"({"error":"no model"})"), "no model");
  EXPECT_EQ(ErrorMessageOf(R"({"message":"not found"})"), "not found");
  EXPECT_EQ(ErrorMessageOf(R"({"detail":"Not Found"})"), "Not Found");
  EXPECT_EQ(ErrorMessageOf("<html>\n"), "<html>");
  EXPECT_EQ(ErrorMessageOf(""), "");
  EXPECT_EQ(ErrorMessageOf(R"({"error":{"message":"\u001b[31mred\u009b"}})"), "[31mred");
  EXPECT_EQ(ErrorMessageOf("\x1b]0;title\x07"), "]0;title");
  EXPECT_THAT(ErrorMessageOf(std::string(5000, 'x')), testing::EndsWith(" ..."));
}

}  // namespace
}  // namespace switchyard::chat
