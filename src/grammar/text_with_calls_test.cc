// Texts in which tools may be called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "grammar/test_vocabulary.h"
#include "grammar/tool_calls.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

nlohmann::ordered_json Tools() {
  return ParseTestJson(R"([
      {"function": {"name": "add", "strict": true, "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}}, "required": ["a"]}}},
      {"function": {"name": "now"}}])");
}

const std::string kAdd = R"(<call>{"name": "add", "arguments": {"a": 1}}</call>)";
const std::string kNow = R"(<call>{"name": "now", "arguments": {"b": [2]}}</call>)";
const std::string kWrong = R"(<call>{"name": "add", "arguments": {"b": 1}}</call>)";

ToolCallFormat Format() {
  return {.head = R"(<call>{"name": )",
          .between = R"(, "arguments": )",
          .tail = "}</call>",
          .trigger = "<call>"};
}

TEST(TextWithCallsGrammar, ConstrainsCallsWithinAnyText) {
  const GrammarSource many = TextWithCallsGrammar(Tools(), /*parallel=*/true, Format());
  for (const std::string& text :
       {std::string(), std::string("Hi <cal"), kAdd, kNow, "Hi " + kAdd + "\n" + kNow + " Bye."})
    EXPECT_TRUE(Matches(many, text)) << text;
  for (const std::string& text : {kWrong, "Hi " + kWrong, kAdd + kWrong, std::string("<call>"),
                                  kAdd.substr(0, kAdd.size() - 1)})
    EXPECT_FALSE(Matches(many, text)) << text;
  const GrammarSource one = TextWithCallsGrammar(Tools(), /*parallel=*/false, Format());
  EXPECT_TRUE(Matches(one, "Hi " + kAdd));
  EXPECT_FALSE(Matches(one, kAdd + " Bye."));
}

TEST(TextWithCallsGrammar, TriggersMayBeSpecialTokensOrTheirText) {
  ToolCallFormat format{.open = "<special>[",
                        .head = "call:",
                        .between = " ",
                        .tail = ";",
                        .close = "]",
                        .quoted = false,
                        .special = {{"<special>", kTestSpecial}},
                        .trigger = "<special>",
                        .excluded = {"call:"}};
  const GrammarSource source = TextWithCallsGrammar(Tools(), /*parallel=*/true, format);
  EXPECT_TRUE(MatchesMarked(source, R"(Hi <special>[call:add {"a": 1};call:now {};] Bye)"));
  EXPECT_FALSE(MatchesMarked(source, R"(Hi <special>[call:add {"b": 1};])"));
  EXPECT_FALSE(MatchesMarked(source, "Hi <special>"));
  EXPECT_FALSE(MatchesMarked(source, R"(call:add {"a": 1};)"));
  EXPECT_TRUE(Matches(source, R"(Hi <special>[call:add {"a": 1};])"));
  EXPECT_FALSE(Matches(source, R"(Hi <special>[call:add {"b": 1};])"));
}

TEST(TextWithCallsGrammar, CallsMayBeginTheText) {
  const ToolCallFormat format{.head = R"({"name": )",
                              .between = R"(, "arguments": )",
                              .tail = "}",
                              .separator = "; ",
                              .trigger = "<call>",
                              .leading = true};
  const GrammarSource source = TextWithCallsGrammar(Tools(), /*parallel=*/true, format);
  const std::string call = R"({"name": "add", "arguments": {"a": 1}})";
  const std::string wrong = R"({"name": "add", "arguments": {"b": 1}})";
  for (const std::string& text : {std::string(), std::string(" \n"), std::string("Hi {}"), call,
                                  "\n" + call, call + "; " + call, "<call>" + call,
                                  "Hi <call>" + call, std::string("<call"), "Hi " + wrong})
    EXPECT_TRUE(Matches(source, text)) << text;
  for (const std::string& text :
       {wrong, " " + wrong, std::string("{}"), "<call>" + wrong, "Hi <call>" + wrong})
    EXPECT_FALSE(Matches(source, text)) << text;
}

TEST(TextWithCallsGrammar, NamesToolsThatCannotBeHonoured) {
  auto tools = Tools();
  for (auto& tool : tools) tool["function"]["parameters"] = {{"not", {{"type", "null"}}}};
  EXPECT_THAT(InvalidMessage([&] { TextWithCallsGrammar(tools, true, Format()); }),
              HasSubstr("add"));
  tools[0]["function"]["strict"] = false;
  EXPECT_EQ(InvalidMessage([&] { TextWithCallsGrammar(tools, true, Format()); }), "");
}

}  // namespace
}  // namespace switchyard
