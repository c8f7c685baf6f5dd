#include "server/api/chat_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

std::string Check(const char* body) {
  const Json json = Json::parse(body);
  try {
    CheckChatFields(Fields(json));
    CheckChatRoles(Fields(json));
  } catch (const RequestError& e) {
    return e.param();
  }
  return "";
}

std::string Variables(const char* body) {
  const Json json = Json::parse(body);
  try {
    return TemplateVariables(Fields(json)).dump();
  } catch (const RequestError& e) {
    return e.param();
  }
}

TEST(ChatFields, ToolChoicesThatCannotBeKeptAreRefused) {
  for (const char* choice : {"null", R"("auto")", R"("none")", R"("required")"})
    EXPECT_EQ(Check(fmt::format(R"({{"tools": [{{}}], "tool_choice": {}}})", choice).c_str()), "");
  EXPECT_EQ(Check(R"({"tools": [{"function": {"name": "f"}}],
                      "tool_choice": {"type": "function", "function": {"name": "f"}}})"),
            "");
  EXPECT_EQ(Check(R"({"tools": [], "tool_choice": "required"})"), "tool_choice");
  EXPECT_EQ(Check(R"({"tool_choice": "required"})"), "tool_choice");
  for (const char* choice :
       {R"("bogus")", R"("")", "1", "{}", R"({"type": "function", "function": {"name": "f"}})",
        R"({"type": "allowed_tools"})"}) {
    EXPECT_EQ(Check(fmt::format(R"({{"tools": [{{}}], "tool_choice": {}}})", choice).c_str()),
              "tool_choice")
        << choice;
  }
  EXPECT_EQ(Check(R"({"tools": [{}], "parallel_tool_calls": "few"})"), "parallel_tool_calls");
  EXPECT_EQ(Check(R"({"tools": [{}], "parallel_tool_calls": false})"), "");
  EXPECT_EQ(Check(R"({"tools": [{}], "parallel_tool_calls": true})"), "");
  EXPECT_EQ(Check(R"({"tools": [], "parallel_tool_calls": false})"), "");
  EXPECT_EQ(Check(R"({"tools": [{}], "tool_choice": "none", "parallel_tool_calls": false})"), "");
}

TEST(ChatFields, RolesAreChecked) {
  for (const char* role :
       {"system", "developer", "user", "assistant", "tool", "function", "ipython", "observation"}) {
    EXPECT_EQ(Check(fmt::format(R"({{"messages": [{{"role": "{}"}}]}})", role).c_str()), "");
  }
  for (const char* role : {"narrator", "User", "", "system "}) {
    EXPECT_EQ(
        Check(
            fmt::format(R"({{"messages": [{{"role": "user"}}, {{"role": "{}"}}]}})", role).c_str()),
        "messages[1].role");
  }
}

TEST(ChatFields, FieldsOfMessagesAreRefusedWithoutMessages) {
  const auto refused = [](const char* body) {
    const Json json = Json::parse(body);
    try {
      CheckFieldsWithoutMessages(Fields(json));
    } catch (const RequestError& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(e.what(), ::testing::HasSubstr(e.param()));
      return e.param();
    }
    return std::string();
  };
  for (const char* field : {"echo", "add_special_tokens", "return_prompt_text"}) {
    EXPECT_EQ(refused(fmt::format(R"({{"{}": true}})", field).c_str()), field);
    for (const char* value : {"false", "null", R"("false")"})
      EXPECT_EQ(refused(fmt::format(R"({{"{}": {}}})", field, value).c_str()), "");
  }
  EXPECT_EQ(refused(R"({"return_prompt_token_ids": true})"), "");
}

TEST(ChatFields, EchoedTextIsThatOfALastMessageOfTheAssistant) {
  const auto echoed = [](const std::string& last) {
    return EchoedText(Json::parse(R"([{"role": "assistant", "content": "before"}, )" + last + "]"));
  };
  EXPECT_EQ(echoed(R"({"role": "assistant", "content": " Once "})"), " Once ");
  EXPECT_EQ(echoed(R"({"role": "assistant", "content": [{"type": "text", "text": "a"}, "b"]})"),
            "a b");
  EXPECT_EQ(echoed(R"({"role": "assistant", "content": null})"), "");
  EXPECT_EQ(echoed(R"({"role": "assistant"})"), "");
  EXPECT_EQ(echoed(R"({"role": "assistant", "content": []})"), "");
  for (const char* role : {"user", "tool", "system"})
    EXPECT_EQ(echoed(fmt::format(R"({{"role": "{}", "content": "x"}})", role)), "");
}

TEST(ChatFields, ReasoningAndDocumentsBecomeVariables) {
  EXPECT_EQ(Variables("{}"), "null");
  EXPECT_EQ(Variables(R"({"reasoning_effort": null, "documents": []})"), "null");
  EXPECT_EQ(Variables(R"({"reasoning_effort": "high"})"),
            R"({"reasoning_effort":"high","enable_thinking":true,"thinking":true})");
  EXPECT_EQ(Variables(R"({"reasoning_effort": "none"})"),
            R"({"reasoning_effort":"none","enable_thinking":false,"thinking":false})");
  const std::string on = R"({"enable_thinking":true,"thinking":true})";
  const std::string off = R"({"enable_thinking":false,"thinking":false})";
  EXPECT_EQ(Variables(R"({"enable_thinking": true})"), on);
  EXPECT_EQ(Variables(R"({"thinking": {"type": "enabled"}})"), on);
  EXPECT_EQ(Variables(R"({"thinking": {"type": "disabled"}, "enable_thinking": true})"), off);
  EXPECT_EQ(Variables(R"({"thinking": {"type": "enabled"}, "reasoning": {"enabled": false}})"),
            off);
  EXPECT_EQ(Variables(R"({"thinking": {"type": "often"}})"), "thinking.type");
  EXPECT_EQ(Variables(R"({"thinking": {"type": "enabled", "budget_tokens": 9}})"),
            "thinking.budget_tokens");
  EXPECT_EQ(Variables(R"({"thinking": true})"), "thinking");
  EXPECT_EQ(Variables(R"({"enable_thinking": "often"})"), "enable_thinking");
  EXPECT_EQ(Variables(R"({"reasoning": {"enabled": false}})"),
            R"({"enable_thinking":false,"thinking":false})");
  EXPECT_EQ(Variables(R"({"reasoning": {"effort": "low"}, "documents": [{"text": "a"}]})"),
            R"({"reasoning_effort":"low","enable_thinking":true,"thinking":true,)"
            R"("documents":[{"text":"a"}]})");
  EXPECT_EQ(Variables(R"({"reasoning_effort": 0.5, "chat_template_kwargs":
                          {"reasoning_effort": "max", "thinking": false}})"),
            R"({"reasoning_effort":"max","enable_thinking":true,"thinking":false})");
  for (const char* bad : {R"("very")", "true", "1.5", "[]"})
    EXPECT_EQ(Variables(fmt::format(R"({{"reasoning_effort": {}}})", bad).c_str()),
              "reasoning_effort");
  EXPECT_EQ(Variables(R"({"chat_template_kwargs": []})"), "chat_template_kwargs");
  EXPECT_EQ(Variables(R"({"documents": "a"})"), "documents");
}

}  // namespace
}  // namespace switchyard
