// continue_final_message: where the prompt ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/chat/chat_test_model.h"
#include "text/chat/messages.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

class FinalMessageTest : public ChatTestModel {
 protected:
  static ChatInput Continuing(Json content, Json question = "Hi") {
    return {.messages = {{{"role", "user"}, {"content", std::move(question)}},
                         {{"role", "assistant"}, {"content", std::move(content)}}},
            .add_generation_prompt = false,
            .continue_final_message = true};
  }
};

const char* const kTurns =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";
const char* const kTrimmed = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";

TEST_F(FinalMessageTest, TheTextMayStandAnywhereElse) {
  for (const char* text : {"The", "end", "d", "|", "", "end ", "<|end|>", "assistant", "Hi", "  ",
                           "a\n", "73915082640", "7391508264"}) {
    EXPECT_EQ(Render(kTurns, Continuing(text, text)),
              std::string("<|user|>") + text + "<|end|><|assistant|>" + text)
        << text;
  }
}

TEST_F(FinalMessageTest, TheRunsEndWithTheText) {
  const jinja::Rendered rendered = Load(kTurns).Apply(Continuing("Sure"));
  ASSERT_FALSE(rendered.runs.empty());
  EXPECT_EQ(rendered.runs.back(),
            (jinja::Run{rendered.text.size() - 4, rendered.text.size(), false}));
}

TEST_F(FinalMessageTest, TrimmingTemplatesTrim) {
  EXPECT_EQ(Render(kTrimmed, Continuing("Sure, the answer ")), "[Hi][Sure, the answer");
  EXPECT_EQ(Render(kTrimmed, Continuing("]")), "[Hi][]");
  EXPECT_EQ(Render(kTrimmed, Continuing("")), "[Hi][");
}

TEST_F(FinalMessageTest, TextThatIsRewrittenKeepsItsEnd) {
  EXPECT_EQ(
      Render("{% for m in messages %}({{ m.content | upper }}){% endfor %}", Continuing("ab")),
      "(HI)(AB");
  EXPECT_EQ(
      Render("{% for m in messages %}{{ m.content | tojson }},{% endfor %}", Continuing("a\"b")),
      R"("Hi","a\"b)");
  EXPECT_EQ(Render("{% for m in messages %}{{ m.content.split('</think>')[-1] }};{% endfor %}",
                   Continuing("x</think>y")),
            "Hi;y");
}

TEST_F(FinalMessageTest, MarksOfEarlierCopiesVanish) {
  EXPECT_EQ(Render("last: {{ messages[-1].content }}.{% for m in messages %}({{ m.content }})"
                   "{% endfor %}!",
                   Continuing("ab")),
            "last: ab.(Hi)(ab");
}

TEST_F(FinalMessageTest, TheLastTextOfAListIsContinued) {
  const Json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  const char* const source =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %};{% endfor %}";
  EXPECT_EQ(Render(source, Continuing(parts)), "Hi;(a)(b");
  EXPECT_EQ(Render(kTurns, Continuing(parts)), "<|user|>Hi<|end|><|assistant|>a b");
}

TEST_F(FinalMessageTest, WhatCannotBeContinuedIsAnError) {
  EXPECT_THAT(Render(kTurns, Continuing(nullptr)), HasSubstr("no text to continue"));
  EXPECT_THAT(Render(kTurns, Continuing(Json::array())), HasSubstr("no text to continue"));
  EXPECT_THAT(Render("nothing", Continuing("a")), HasSubstr("continue_final_message"));
  ChatInput input = Continuing("a");
  input.add_generation_prompt = true;
  EXPECT_THAT(Render(kTurns, input), HasSubstr("mutually exclusive"));
}

}  // namespace
}  // namespace switchyard
