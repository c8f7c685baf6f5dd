// Tools with `strict` and tool_choice "auto": the output is any text, and the arguments of calls in
// it match the tools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/openai/grammar_server.h"

namespace switchyard::openai {
namespace {

using ::testing::HasSubstr;

Json StrictTools() {
  Json tools = Tools();
  tools[0]["function"]["strict"] = true;  // tools[0] is get_weather
  return tools;
}

TEST(StrictCalls, HaveMatchingArgumentsInAnyText) {
  for (size_t i = 0; i < JsonFormats().size(); ++i) {
    const Format format = JsonFormats()[i];
    SCOPED_TRACE(format.shape);
    GrammarServer server(format.shape, format.markers);
    server.Answer(format.call);
    const bool harmony = format.shape == std::string("harmony");
    const bool llama = format.shape == std::string("llama3_1");
    const std::string text = harmony ? "<|channel|>final<|message|>Hello" : "Hello";
    const std::string wrong = JsonFormats(R"({"city": 5})")[i].call;
    const Json answer = server.Ask(kChat, Body({{"tools", StrictTools()}}))["choices"][0];
    EXPECT_EQ(answer["message"]["tool_calls"].size(), 1u) << answer;
    EXPECT_TRUE(server.Allows(format.call));
    EXPECT_TRUE(server.Allows(text));
    EXPECT_FALSE(server.Allows(wrong));
    EXPECT_FALSE(server.Allows(JsonFormats("{}")[i].call));
    EXPECT_FALSE(server.Allows(JsonFormats(R"({"city": "Rom", "day": 1})")[i].call));
    if (harmony) continue;
    EXPECT_TRUE(server.Allows(""));
    const std::string tag = llama ? "<|python_tag|>" : "";
    EXPECT_TRUE(server.Allows("Hello " + tag + format.call));
    EXPECT_FALSE(server.Allows("Hello " + tag + wrong));
    EXPECT_TRUE(server.Allows(tag + format.call));
    EXPECT_FALSE(server.Allows(tag + wrong));
    // Arguments of other tools are any JSON object.
    for (const std::string& call : {format.call, wrong}) {
      std::string other = call;
      other.replace(other.find("get_weather"), 11, "get_time");
      EXPECT_TRUE(server.Allows(other)) << other;
      other.replace(other.find("get_time"), 8, "get_news");
      EXPECT_FALSE(server.Allows(other)) << other;
    }
  }
}

TEST(StrictCalls, FollowReasoningAndText) {
  GrammarServer server("qwen3", {"<think>", "</think>"});
  server.Answer(kThought + "Let me see.\n" + kWeather);
  const Json body = Body({{"tools", StrictTools()}});
  const Json message = server.Ask(kChat, body)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Sunny?");
  EXPECT_EQ(message["content"], "Let me see.");
  EXPECT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_TRUE(server.Allows(kThought + "Hi"));
  EXPECT_TRUE(server.Allows(kThought + kWeather + "\n" + kTime + "\nDone."));
  EXPECT_TRUE(server.Allows("<tool_calls> and <tool_" + kWeather));
  EXPECT_FALSE(server.Allows("<think>Is <tool_call> right?</think>"));

  GrammarServer harmony("harmony", {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"});
  harmony.Answer("Hi");
  harmony.Ask(kChat, body);
  const std::string turn = "<|end|><|start|>assistant";
  const std::string before = "<|channel|>analysis<|message|>Sunny?" + turn +
                             "<|channel|>commentary<|message|>Let me see." + turn;
  const std::string call =
      "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>";
  EXPECT_TRUE(harmony.Allows(before + call + R"({"city": "Rom"})"));
  EXPECT_FALSE(harmony.Allows(before + call + R"({"city": 5})"));
  EXPECT_TRUE(harmony.Allows(before + "<|channel|>final<|message|>Hi"));
}

TEST(StrictCalls, AreTheOnlyOneIfTheRequestExcludesOthers) {
  GrammarServer server("qwen3");
  server.Answer(kWeather);
  Json body = Body({{"tools", StrictTools()}, {"parallel_tool_calls", false}});
  server.Ask(kChat, body);
  EXPECT_TRUE(server.Allows("Hi " + kWeather));
  EXPECT_FALSE(server.Allows(kWeather + "\n" + kTime));
}

// Llama's calls have no marker. They are recognized only at the beginning of the content.
TEST(StrictCalls, MayBeginContentAfterReasoning) {
  const std::string call = R"({"name": "get_weather", "parameters": {"city": "Rom"}})";
  const std::string wrong = R"({"name": "get_weather", "parameters": {"city": 5}})";
  ServerArgs args;
  args.reasoning_parser = "qwen3";
  for (const std::vector<std::string>& markers :
       {std::vector<std::string>{}, {"<|python_tag|>", "<think>", "</think>"}}) {
    GrammarServer server("llama3_1", markers, args);
    server.Answer("Hi");
    server.Ask(kChat, Body({{"tools", StrictTools()}}));
    for (const std::string& before : {std::string(), std::string("\n"), kThought}) {
      EXPECT_TRUE(server.Allows(before + call)) << before;
      EXPECT_TRUE(server.Allows(before + "Hi"));
      EXPECT_TRUE(server.Allows(before + "<|python_tag|>" + call));
      EXPECT_FALSE(server.Allows(before + wrong));
      EXPECT_FALSE(server.Allows(before + "<|python_tag|>" + wrong));
      EXPECT_FALSE(server.Allows(before + R"({"city": "Rom"})"));
    }
  }
}

TEST(StrictCalls, NeedParametersThatCanBeHonoured) {
  GrammarServer server("qwen3");
  server.Answer("Hi");
  Json body = Body({{"tools", StrictTools()}});
  body["tools"][0]["function"]["parameters"]["not"] = Json::object();
  const Json error = server.Ask(kChat, body, 400);
  EXPECT_EQ(error["param"], "tools");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("get_weather"));
  body["tool_choice"] = "none";
  server.Ask(kChat, body);
  EXPECT_FALSE(server.IsConstrained());
  // qwen3_coder writes calls not as JSON, and chatml has no format of calls.
  for (const char* shape : {"qwen3_coder", "chatml"}) {
    GrammarServer other(shape);
    other.Answer("Hi");
    body["tool_choice"] = "auto";
    other.Ask(kChat, body);
    EXPECT_FALSE(other.IsConstrained()) << shape;
  }
  server.world().service.grammars = nullptr;
  server.Ask(kChat, Body({{"tools", StrictTools()}}));
}

TEST(StrictCalls, MayReplaceConstrainedContent) {
  GrammarServer server("qwen3", {"<tool_call>", "</tool_call>"});
  server.Answer(kWeather);
  const Json format = {{"type", "json_object"}};
  server.Ask(kChat, Body({{"tools", StrictTools()}, {"response_format", format}}));
  EXPECT_TRUE(server.Allows("{}"));
  EXPECT_TRUE(server.Allows(kThought + kWeather + "\n" + kTime));
  EXPECT_FALSE(server.Allows("Hello"));
  EXPECT_FALSE(server.Allows("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}"));
}

TEST(StrictCalls, WorkWithAllApis) {
  GrammarServer server("qwen3");
  server.Answer(kWeather);
  const Json function = StrictTools()[0]["function"];
  Json tool = function;
  tool["type"] = "function";
  server.Ask("/v1/responses", {{"input", "Weather?"}, {"tools", Json::array({tool})}});
  const std::string wrong = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}";
  EXPECT_TRUE(server.Allows("Hi " + kWeather));
  EXPECT_FALSE(server.Allows(wrong));
  const Json weather = {
      {"name", "get_weather"}, {"input_schema", function["parameters"]}, {"strict", true}};
  server.Ask("/v1/messages", Body({{"max_tokens", 50}, {"tools", Json::array({weather})}}));
  EXPECT_TRUE(server.Allows("Hi " + kWeather));
  EXPECT_FALSE(server.Allows(wrong));
}

}  // namespace
}  // namespace switchyard::openai
