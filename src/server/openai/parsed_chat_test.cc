// Chats whose outputs are parsed: reasoning and tool calls, streamed and not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "server/openai/answering_server.h"

namespace switchyard::openai {
namespace {

using ::testing::HasSubstr;

const std::string kChat = "/v1/chat/completions";

class ParsedChat : public AnsweringServer {
 public:
  using AnsweringServer::AnsweringServer;

  // Choice 0 of a chat.
  Json Choice(const Json& more = Json::object()) { return Ask(kChat, Body(more))["choices"][0]; }

  std::vector<Json> Events(const Json& more = Json::object()) { return Stream(kChat, Body(more)); }

  // Joins the events of a stream to choices in the form that a response without streaming has.
  std::vector<Json> Joined(const std::vector<Json>& events) {
    std::vector<Json> choices;
    for (const Json& event : events) {
      for (const Json& choice : event["choices"]) Join(choice, &choices);
    }
    return choices;
  }
  Json JoinedChoice(const Json& more = Json::object()) { return Joined(Events(more)).at(0); }

  static Json Body(const Json& more) {
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "Weather?"}}})}};
    body.update(more);
    return body;
  }

 private:
  static void Join(const Json& choice, std::vector<Json>* choices) {
    const auto index = choice["index"].get<size_t>();
    if (choices->size() <= index) choices->resize(index + 1);
    Json& whole = (*choices)[index];
    Json& message = whole["message"];
    const Json& delta = choice["delta"];
    if (delta.contains("role")) {
      message = {{"role", delta["role"]}};
    }
    for (const char* key : {"content", "reasoning_content", "reasoning"}) {
      const std::string text = delta.value(key, "");
      if (!text.empty()) message[key] = message.value(key, "") + text;
    }
    const size_t parts = delta.contains("role")
                             ? 0
                             : delta.contains("content") + delta.contains("reasoning_content") +
                                   delta.contains("tool_calls");
    EXPECT_LE(parts, 1u) << delta;
    for (const Json& call : delta.value("tool_calls", Json::array())) JoinCall(call, &message);
    for (const auto& entry :
         choice["logprobs"].is_null() ? Json::array() : choice["logprobs"]["content"])
      whole["logprobs"]["content"].push_back(entry);
    if (!choice["finish_reason"].is_null()) whole["finish_reason"] = choice["finish_reason"];
  }

  static void JoinCall(const Json& call, Json* message) {
    Json& calls = (*message)["tool_calls"];
    const auto index = call["index"].get<size_t>();
    if (call.contains("id")) {
      EXPECT_EQ(calls.size(), index);
      Json whole = call;
      whole.erase("index");
      calls.push_back(std::move(whole));
      return;
    }
    Json& arguments = calls.at(index)["function"]["arguments"];
    arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
  }
};

Json Tool(const std::string& name) {
  Json function = {{"name", name}, {"description", name}};
  function["parameters"] = Json::parse(
      R"({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})");
  return {{"type", "function"}, {"function", std::move(function)}};
}

Json WithTools(Json more = Json::object()) {
  more["tools"] = Json::array({Tool("get_weather"), Tool("get_time")});
  return more;
}

const std::string kThought = "<think>\nSunny?\n</think>\n\n";
const std::string kCalls =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
    "\"Löndon\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>";
const std::vector<std::string> kHarmony = {"<|start|>",     "<|channel|>", "<|message|>",
                                           "<|constrain|>", "<|end|>",     "<|call|>",
                                           "<|return|>"};

// The response without ids, which are random.
Json WithoutIds(Json choice) {
  for (Json& call : choice["message"]["tool_calls"]) call.erase("id");
  return choice;
}

TEST(ParsedChatTest, CallsAndReasoningAreApartFromTheContent) {
  ParsedChat chat("qwen3", {"<think>", "</think>", "<tool_call>", "</tool_call>"});
  chat.Answer(kThought + kCalls);
  const Json choice = chat.Choice(WithTools());
  const Json& message = choice["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["reasoning_content"], "Sunny?");
  EXPECT_EQ(message["reasoning"], "Sunny?");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  std::set<std::string> ids;
  for (const Json& call : message["tool_calls"]) {
    EXPECT_EQ(call["type"], "function");
    const auto id = call["id"].get<std::string>();
    EXPECT_TRUE(std::regex_match(id, std::regex("call_[0-9A-Za-z]{24}"))) << id;
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["function"],
            Json({{"name", "get_weather"}, {"arguments", R"({"city": "Löndon"})"}}));
  EXPECT_EQ(message["tool_calls"][1]["function"]["name"], "get_time");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

TEST(ParsedChatTest, StreamsGiveTheSameMessage) {
  ParsedChat chat("qwen3", {"<think>", "</think>"});
  for (const std::string& text : {kThought + kCalls, kThought + "It is sunny.\n", std::string("Hi"),
                                  "Let me see.\n" + kCalls + "Done."}) {
    chat.Answer(text);
    for (const bool one_by_one : {true, false}) {
      chat.world().link.one_by_one = one_by_one;
      Json whole = WithoutIds(chat.Choice(WithTools()));
      Json streamed = WithoutIds(chat.JoinedChoice(WithTools()));
      for (const char* key : {"content", "reasoning_content", "reasoning", "tool_calls"})
        EXPECT_EQ(streamed["message"].value(key, Json()), whole["message"].value(key, Json()))
            << text << key;
      EXPECT_EQ(streamed["finish_reason"], whole["finish_reason"]);
    }
  }
}

TEST(ParsedChatTest, ArgumentsAreStreamedInPieces) {
  ParsedChat chat("qwen3");
  chat.Answer(kCalls);
  int pieces = 0;
  bool named = false;
  for (const Json& event : chat.Events(WithTools())) {
    const Json& delta = event["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    ASSERT_EQ(delta["tool_calls"].size(), 1u);
    const Json& call = delta["tool_calls"][0];
    named = named || call["function"].contains("name");
    EXPECT_TRUE(named);
    if (call["index"] == 0) ++pieces;
  }
  EXPECT_GT(pieces, 3);
}

TEST(ParsedChatTest, WithoutOfferedToolsCallsAreText) {
  ParsedChat chat("qwen3");
  chat.Answer(kThought + kCalls);
  for (const Json& more : {Json::object(), WithTools({{"tool_choice", "none"}})}) {
    const Json choice = chat.Choice(more);
    EXPECT_EQ(choice["message"]["content"], kCalls);
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
}

TEST(ParsedChatTest, ParallelCallsCanBeSwitchedOff) {
  ParsedChat chat("qwen3");
  chat.Answer(kCalls);
  const Json more = WithTools({{"parallel_tool_calls", false}});
  for (const Json& choice : {chat.Choice(more), chat.JoinedChoice(more)}) {
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "get_weather");
  }
}

TEST(ParsedChatTest, UsageCountsReasoningTokens) {
  ParsedChat chat("qwen3", {"<think>", "</think>"});
  chat.Answer(kThought + "Yes");
  const Tokenizer& tokenizer = *chat.world().model.tokenizer;
  // The line ends after </think> are not reasoning.
  const auto thought =
      static_cast<int64_t>(tokenizer.Encode("<think>\nSunny?\n</think>", false).size());
  for (const bool one_by_one : {true, false}) {
    chat.world().link.one_by_one = one_by_one;
    const Json usage = chat.Ask(kChat, ParsedChat::Body(Json::object()))["usage"];
    EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], thought);
    EXPECT_EQ(usage["reasoning_tokens"], thought);  // the same count under SGLang's name
    const auto events = chat.Events({{"stream_options", {{"include_usage", true}}}});
    EXPECT_EQ(events.back()["usage"], usage);
  }
  const Json twice = chat.Ask(kChat, ParsedChat::Body({{"n", 2}}))["usage"];
  EXPECT_EQ(twice["completion_tokens_details"]["reasoning_tokens"], 2 * thought);
}

TEST(ParsedChatTest, ReasoningOptionsAreHonoured) {
  ParsedChat chat("qwen3");
  chat.Answer(kThought + "Yes");
  const Json joint = chat.Choice({{"separate_reasoning", false}})["message"];
  EXPECT_EQ(joint["content"], kThought + "Yes");
  EXPECT_FALSE(joint.contains("reasoning_content"));
  const Json without = chat.Choice({{"include_reasoning", false}})["message"];
  EXPECT_EQ(without["content"], "Yes");
  EXPECT_TRUE(without["reasoning_content"].is_null());
  int pieces = 0;
  for (const Json& event : chat.Events({{"stream_reasoning", false}})) {
    const Json& delta = event["choices"][0]["delta"];
    if (!delta.contains("reasoning_content")) continue;
    EXPECT_EQ(delta["reasoning_content"], "Sunny?");
    ++pieces;
  }
  EXPECT_EQ(pieces, 1);
  for (const char* field : {"separate_reasoning", "stream_reasoning", "include_reasoning"})
    EXPECT_EQ(chat.Ask(kChat, ParsedChat::Body({{field, "some"}}), 400)["param"], field);
}

TEST(ParsedChatTest, TheTemplateMayOpenOrCloseTheReasoning) {
  ParsedChat opens("minimax_m2");
  opens.Answer("Sunny?\n</think>\n\nYes");
  EXPECT_EQ(opens.Choice()["message"]["reasoning_content"], "Sunny?");
  EXPECT_EQ(opens.Choice()["message"]["content"], "Yes");
  // The prompt of this template closes the reasoning, so without <think> the output has none.
  ParsedChat closes("deepseek_v3_1");
  closes.Answer("Sunny?</think>Yes");
  EXPECT_EQ(closes.Choice()["message"]["content"], "Sunny?</think>Yes");
  const Json thinks = {{"chat_template_kwargs", {{"thinking", true}}}};
  EXPECT_EQ(closes.Choice(thinks)["message"]["content"], "Yes");
  EXPECT_EQ(closes.Choice(thinks)["message"]["reasoning_content"], "Sunny?");
}

TEST(ParsedChatTest, AContinuedMessageAndEchoKeepTheirText) {
  ParsedChat chat("qwen3");
  chat.Answer("\n upon a time");
  Json more = {{"continue_final_message", true}, {"echo", true}};
  more["messages"] = Json::array(
      {{{"role", "user"}, {"content", "Tell"}}, {{"role", "assistant"}, {"content", "Once"}}});
  EXPECT_EQ(chat.Choice(more)["message"]["content"], "Once\n upon a time");
  EXPECT_EQ(chat.JoinedChoice(more)["message"]["content"], "Once\n upon a time");
}

TEST(ParsedChatTest, LogprobsAndCopiesCoverAllTokens) {
  ParsedChat chat("qwen3");
  chat.Answer(kThought + kCalls);
  RequestOutput& answer = chat.world().link.answer;
  for (const int32_t token : answer.new_tokens)
    answer.output_logprobs.push_back({.logprob = -1, .token = token});
  chat.world().link.one_by_one = false;
  const Json more = WithTools({{"logprobs", true}, {"n", 2}});
  const Json whole = chat.Ask(kChat, ParsedChat::Body(more))["choices"];
  const std::vector<Json> streamed = chat.Joined(chat.Events(more));
  ASSERT_EQ(whole.size(), 2u);
  ASSERT_EQ(streamed.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(whole[i]["logprobs"]["content"].size(), answer.new_tokens.size());
    EXPECT_EQ(streamed[i]["logprobs"], whole[i]["logprobs"]);
    EXPECT_EQ(streamed[i]["message"]["tool_calls"].size(), 2u);
  }
}

TEST(ParsedChatTest, ACutCallHasTheReasonLength) {
  ParsedChat chat("qwen3");
  chat.Answer("<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lon",
              FinishReason::kLength);
  for (const Json& choice : {chat.Choice(WithTools()), chat.JoinedChoice(WithTools())}) {
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"city": "Lon)");
  }
}

TEST(ParsedChatTest, StopStringsEndParsedTextToo) {
  ParsedChat chat("qwen3");
  chat.Answer(kThought + "One two three", FinishReason::kLength);
  for (const Json& choice :
       {chat.Choice({{"stop", "two"}}), chat.JoinedChoice({{"stop", "two"}})}) {
    EXPECT_EQ(choice["message"]["content"], "One ");
    EXPECT_EQ(choice["message"]["reasoning_content"], "Sunny?");
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
}

TEST(ParsedChatTest, HarmonyChannelsBecomeFields) {
  ParsedChat chat("harmony", kHarmony);
  chat.Answer(
      "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>"
      "Hello<|return|>");
  for (const Json& choice : {chat.Choice(), chat.JoinedChoice()}) {
    EXPECT_EQ(choice["message"]["reasoning_content"], "think");
    EXPECT_EQ(choice["message"]["content"], "Hello");
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
  EXPECT_EQ(chat.Choice({{"separate_reasoning", false}})["message"]["content"], "think\nHello");
  chat.Answer(
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Rom\"}<|call|>");
  for (const Json& choice : {chat.Choice(WithTools()), chat.JoinedChoice(WithTools())}) {
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
              Json({{"name", "get_weather"}, {"arguments", R"({"city": "Rom"})"}}));
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
  }
}

TEST(ParsedChatTest, PromptsOfIdsGiveTheirEnd) {
  ParsedChat chat("minimax_m2");
  chat.Answer("Sunny?</think>Yes");
  const Tokenizer& tokenizer = *chat.world().model.tokenizer;
  const auto choice = [&](const char* prompt) {
    return chat.Ask(kChat, {{"input_ids", tokenizer.Encode(prompt, false)}})["choices"][0];
  };
  EXPECT_EQ(choice("ai\n<think>\n")["message"]["content"], "Yes");
  EXPECT_EQ(choice("ai\n<think>\n\n</think>\n\n")["message"]["content"], "Sunny?</think>Yes");
}

TEST(ParsedChatTest, IdsHaveTheFormOfTheModel) {
  ParsedChat mistral("mistral_v7", {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"});
  mistral.Answer(R"([TOOL_CALLS]get_weather[ARGS]{"city": "Rom"})");
  const Json call = mistral.Choice(WithTools())["message"]["tool_calls"][0];
  EXPECT_EQ(call["id"].get<std::string>().size(), 9u) << call;
  ParsedChat kimi("kimi_k2", {"<|tool_calls_section_begin|>", "<|tool_call_begin|>",
                              "<|tool_call_argument_begin|>", "<|tool_call_end|>",
                              "<|tool_calls_section_end|>"});
  kimi.Answer(
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
      "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>");
  EXPECT_EQ(kimi.Choice(WithTools())["message"]["tool_calls"][0]["id"], "functions.get_weather:0");
}

TEST(ParsedChatTest, FlagsOverrideTheTemplate) {
  ParsedChat none("qwen3", {}, {.tool_call_parser = "none", .reasoning_parser = "none"});
  none.Answer(kThought + kCalls);
  EXPECT_EQ(none.Choice(WithTools())["message"]["content"], kThought + kCalls);
  ParsedChat named("chatml", {}, {.tool_call_parser = "hermes", .reasoning_parser = "deepseek-r1"});
  named.Answer("Sunny?</think>" + kCalls);
  const Json message = named.Choice(WithTools())["message"];
  EXPECT_EQ(message["reasoning_content"], "Sunny?");
  EXPECT_EQ(message["tool_calls"].size(), 2u);
}

TEST(ParsedChatTest, MalformedToolsAreNamed) {
  ParsedChat chat("qwen3");
  chat.Answer("Hi");
  const auto param = [&](const char* tools) {
    return chat.Ask(kChat, ParsedChat::Body({{"tools", Json::parse(tools)}}), 400)["param"]
        .get<std::string>();
  };
  EXPECT_EQ(param(R"("hammer")"), "tools");
  EXPECT_EQ(param(R"([5])"), "tools[0]");
  EXPECT_EQ(param(R"([{"type": "custom"}])"), "tools[0].type");
  EXPECT_EQ(param(R"([{"type": "function"}])"), "tools[0].function");
  EXPECT_EQ(param(R"([{"function": {}}])"), "tools[0].function.name");
  EXPECT_EQ(param(R"([{"function": {"name": "a"}}, {"function": {"name": "a b"}}])"),
            "tools[1].function.name");
  EXPECT_EQ(param(R"([{"function": {"name": "a", "parameters": "none"}}])"),
            "tools[0].function.parameters");
  EXPECT_EQ(param(R"([{"function": {"name": "a", "description": 5}}])"),
            "tools[0].function.description");
  const Json other = Json::parse(R"({"type": "function", "function": {"name": "f"}})");
  EXPECT_EQ(chat.Ask(kChat, ParsedChat::Body(WithTools({{"tool_choice", other}})), 400)["param"],
            "tool_choice");
  EXPECT_EQ(chat.Ask(kChat, ParsedChat::Body({{"tool_choice", "required"}}), 400)["param"],
            "tool_choice");
}

TEST(ParsedChatTest, TextsAreParsedWithoutTheModel) {
  ParsedChat chat("qwen3");
  Json body = {{"text", "Look: " + kCalls}, {"tools", WithTools()["tools"]}};
  const Json calls = chat.Ask("/parse_function_call", body);
  EXPECT_EQ(calls["normal_text"], "Look:");
  ASSERT_EQ(calls["calls"].size(), 2u);
  EXPECT_EQ(calls["calls"][1],
            Json({{"tool_index", 1}, {"name", "get_time"}, {"parameters", R"({"city": "Rom"})"}}));
  body["tool_call_parser"] = "mistral";
  EXPECT_EQ(chat.Ask("/parse_function_call", body)["calls"], Json::array());
  body["tool_call_parser"] = "nonsense";
  const Json error = chat.Ask("/parse_function_call", body, 400);
  EXPECT_EQ(error["param"], "tool_call_parser");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("qwen25"));
  EXPECT_EQ(chat.Ask("/parse_function_call", {{"tools", Json::array()}}, 400)["param"], "text");

  Json thought = {{"text", "a</think>b"}, {"reasoning_parser", "deepseek-r1"}};
  EXPECT_EQ(chat.Ask("/separate_reasoning", thought),
            Json({{"reasoning_text", "a"}, {"text", "b"}}));
  thought["return_blocks"] = true;
  EXPECT_EQ(chat.Ask("/separate_reasoning", thought)["blocks"].size(), 2u);
  thought["reasoning_parser"] = "nonsense";
  EXPECT_EQ(chat.Ask("/separate_reasoning", thought, 400)["param"], "reasoning_parser");
}

}  // namespace
}  // namespace switchyard::openai
