// Grammars of chats: calls that tool_choice requires, and content after reasoning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/api/grammar_fields.h"
#include "server/openai/grammar_server.h"

namespace switchyard::openai {
namespace {

using ::testing::HasSubstr;

// Forced calls have the form of the template. Each is parsed to the same message.
TEST(ForcedCalls, HaveTheFormOfTheModel) {
  const std::string arguments = R"({"city": "Rom"})";
  const std::string json = R"({"name": "get_weather", "parameters": )" + arguments + "}";
  std::vector<Format> formats = JsonFormats();
  for (const Format& other :  // parameters between tags, or no format of calls
       {Format{"qwen3_coder", {}, json}, Format{"glm4_5", {"<tool_call>", "</tool_call>"}, json},
        Format{"chatml", {}, json}})
    formats.push_back(other);
  for (const Format& format : formats) {
    SCOPED_TRACE(format.shape);
    GrammarServer server(format.shape, format.markers);
    server.Answer(format.call);
    for (const char* choice : {R"("required")", kNamed}) {
      const Json answer = server.Ask(kChat, Required(choice))["choices"][0];
      const Json& message = answer["message"];
      ASSERT_EQ(message["tool_calls"].size(), 1u) << message;
      EXPECT_EQ(message["tool_calls"][0]["function"],
                Json({{"name", "get_weather"}, {"arguments", arguments}}));
      EXPECT_EQ(answer["finish_reason"], "tool_calls");
      EXPECT_EQ(message.value("content", Json()), Json()) << message;
      EXPECT_EQ(server.Allows(format.call), choice != std::string_view(kNamed));
      EXPECT_FALSE(server.Allows("Hello"));
      EXPECT_FALSE(server.Allows(""));
    }
  }
}

TEST(ForcedCalls, MayBeSeveralUnlessTheRequestExcludesIt) {
  GrammarServer server("qwen3");
  server.Answer(kWeather);
  server.Ask(kChat, Required());
  EXPECT_TRUE(server.Allows(kWeather + "\n" + kTime));
  EXPECT_FALSE(server.Allows(kWeather + "\n" + kTime + " Done."));
  Json body = Required();
  body["parallel_tool_calls"] = false;
  server.Ask(kChat, body);
  EXPECT_FALSE(server.Allows(kWeather + "\n" + kTime));
  EXPECT_TRUE(server.Allows(kTime));
}

TEST(ForcedCalls, FollowTheReasoning) {
  GrammarServer undecided("qwen3", {"<think>", "</think>"});
  undecided.Answer(kThought + kWeather);
  const Json message = undecided.Ask(kChat, Required())["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Sunny?");
  EXPECT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_TRUE(undecided.Allows(kThought + kWeather));
  EXPECT_TRUE(undecided.Allows(kWeather));
  EXPECT_FALSE(undecided.Allows(kThought));
  EXPECT_FALSE(undecided.Allows("Sunny?</think>" + kWeather));

  // The prompt of this template ends with <think>, so the output begins within reasoning.
  GrammarServer open("minimax_m2");
  open.Answer("Sunny?</think>Yes");
  open.Ask(kChat, Required());
  const std::string call = R"({"name": "get_time", "parameters": {"city": "Rom"}})";
  EXPECT_TRUE(open.Allows("Sunny?\n</think>\n\n" + call));
  EXPECT_FALSE(open.Allows(call));

  GrammarServer harmony("harmony", {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"});
  harmony.Answer("Hi");
  harmony.Ask(kChat, Required());
  EXPECT_TRUE(harmony.Allows(
      "<|channel|>analysis<|message|>Sunny?<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.get_time <|constrain|>json<|message|>{\"city\": \"Rom\"}"));
  EXPECT_FALSE(harmony.Allows("<|channel|>final<|message|>Hi"));
}

TEST(ForcedCalls, WorkWithAllApis) {
  GrammarServer server("qwen3");
  server.Answer(kWeather);
  Json tool = Tools()[0]["function"];
  tool["type"] = "function";
  const Json response = server.Ask(
      "/v1/responses",
      {{"input", "Weather?"}, {"tools", Json::array({tool})}, {"tool_choice", "required"}});
  EXPECT_EQ(response["output"][0]["type"], "function_call");
  EXPECT_EQ(response["output"][0]["arguments"], R"({"city": "Rom"})");
  EXPECT_TRUE(server.Allows(kWeather));
  EXPECT_FALSE(server.Allows("Hello"));
  tool.erase("type");
  const Json weather = {{"name", "get_weather"}, {"input_schema", tool["parameters"]}};
  for (const char* choice : {R"({"type": "any"})", R"({"type": "tool", "name": "get_weather"})"}) {
    const Json message = server.Ask("/v1/messages", Body({{"max_tokens", 50},
                                                          {"tools", Json::array({weather})},
                                                          {"tool_choice", Json::parse(choice)}}));
    EXPECT_EQ(message["content"][0]["type"], "tool_use");
    EXPECT_EQ(message["stop_reason"], "tool_use");
    EXPECT_TRUE(server.Allows(kWeather));
    EXPECT_FALSE(server.Allows("Hello"));
  }
}

TEST(ForcedCalls, ThatCannotBeHonouredAreRefused) {
  GrammarServer server("qwen3");
  server.Answer("Hi");
  Json body = Required();
  body["tools"][0]["function"]["parameters"]["not"] = Json::object();
  Json error = server.Ask(kChat, body, 400);
  EXPECT_EQ(error["param"], "tools");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("get_weather"));
  body["tool_choice"] = "auto";  // does not constrain the arguments
  server.Ask(kChat, body);
  EXPECT_FALSE(server.IsConstrained());
  server.world().service.grammars = nullptr;
  error = server.Ask(kChat, Required(), 400);
  EXPECT_EQ(error["param"], "tool_choice");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("--grammar-backend none"));
}

TEST(ForcedCalls, CannotBeginInReasoning) {
  GrammarServer server("qwen3", {"<think>", "</think>"});
  server.Answer(kWeather);
  server.Ask(kChat, Required());
  EXPECT_FALSE(server.Allows("<think>Is <tool_call> right?</think>" + kWeather));
  EXPECT_TRUE(server.Allows("<think>Is it right?</think>" + kWeather));
}

TEST(ChatConstraint, AppliesToTheContentAfterReasoning) {
  const Json format = Json::parse(R"({"response_format": {"type": "json_object"}})");
  for (const std::vector<std::string>& markers :
       {std::vector<std::string>{}, {"<think>", "</think>"}}) {
    GrammarServer server("qwen3", markers);
    server.Answer(kThought + "{}");
    const Json message = server.Ask(kChat, Body(format))["choices"][0]["message"];
    EXPECT_EQ(message["content"], "{}");
    EXPECT_EQ(message["reasoning_content"], "Sunny?");
    for (const std::string& text : {kThought + "{}", std::string("{}")})
      EXPECT_TRUE(server.Allows(text)) << text;
    for (const std::string& text : {kThought, kThought + "Hi", std::string("Hi"), kWeather})
      EXPECT_FALSE(server.Allows(text)) << text;
    Json joint = Body(format);  // without separate_reasoning, the grammar allows no reasoning
    joint["separate_reasoning"] = false;
    server.Ask(kChat, joint);
    EXPECT_TRUE(server.Allows("{}"));
    EXPECT_FALSE(server.Allows(kThought + "{}"));
  }
  GrammarServer open("minimax_m2");
  open.Answer("Hi");
  open.Ask(kChat, Body(format));
  EXPECT_TRUE(open.Allows("Sunny?</think>{}"));
  EXPECT_FALSE(open.Allows("{}"));
  GrammarServer harmony("harmony", {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"});
  harmony.Answer("Hi");
  harmony.Ask(kChat, Body(format));
  EXPECT_TRUE(harmony.Allows("<|channel|>final<|message|>{}"));
  EXPECT_TRUE(
      harmony.Allows("<|channel|>analysis<|message|>Sunny?<|end|><|start|>assistant"
                     "<|channel|>final<|message|>{}"));
  EXPECT_FALSE(harmony.Allows("<|channel|>final<|message|>Hi"));
  EXPECT_FALSE(harmony.Allows("{}"));
}

TEST(ChatConstraint, LeavesCallsOfOfferedToolsPossible) {
  GrammarServer server("qwen3", {"<tool_call>", "</tool_call>"});
  server.Answer(kWeather);
  Json body = Body({{"tools", Tools()}, {"response_format", {{"type", "json_object"}}}});
  EXPECT_EQ(server.Ask(kChat, body)["choices"][0]["message"]["tool_calls"].size(), 1u);
  EXPECT_TRUE(server.Allows(kWeather + "\n" + kTime));
  EXPECT_TRUE(server.Allows(kThought + kWeather));
  EXPECT_TRUE(server.Allows("{}"));
  EXPECT_FALSE(server.Allows("Hello"));
  body["tool_choice"] = "none";
  server.Ask(kChat, body);
  EXPECT_FALSE(server.Allows(kWeather));
  body["tool_choice"] = "required";  // there is no content to constrain
  server.Ask(kChat, body);
  EXPECT_TRUE(server.Allows(kWeather));
  EXPECT_FALSE(server.Allows("{}"));
}

TEST(ChatConstraint, HasAFieldInEachApi) {
  GrammarServer server("qwen3");
  server.Answer("{\"a\": 1}");
  const Json schema = Json::parse(
      R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})");
  const Json format = {{"type", "json_schema"}, {"name", "n"}, {"schema", schema}};
  server.Ask("/v1/responses", {{"input", "Hi"}, {"text", {{"format", format}}}});
  EXPECT_TRUE(server.Allows("{\"a\": 1}"));
  EXPECT_FALSE(server.Allows("{\"a\": \"b\"}"));
  server.Ask("/v1/responses", Json::parse(R"({"input": "Hi",
                                              "text": {"format": {"type": "json_object"}}})"));
  EXPECT_TRUE(server.Allows("{\"a\": \"b\"}"));
  EXPECT_FALSE(server.Allows("[]"));
  for (const bool config : {false, true}) {
    Json body = Body({{"max_tokens", 50}});
    (config ? body["output_config"]["format"] : body["output_format"]) = {{"type", "json_schema"},
                                                                          {"schema", schema}};
    server.Ask("/v1/messages", body);
    EXPECT_TRUE(server.Allows("{\"a\": 1}"));
    EXPECT_FALSE(server.Allows("{\"a\": \"b\"}"));
  }
}

}  // namespace
}  // namespace switchyard::openai
