// For tests: chat requests with tools, and a server that records the grammars of requests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "grammar/compiled_grammar.h"
#include "server/openai/answering_server.h"

namespace switchyard::openai {

inline const std::string kChat = "/v1/chat/completions";
inline const std::string kThought = "<think>\nSunny?\n</think>\n\n";
inline const std::string kWeather =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>";
inline const std::string kTime =
    "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>";

inline Json Tools() {
  Json tools = Json::array();
  for (const char* name : {"get_weather", "get_time"}) {
    Json function = {{"name", name}, {"description", name}};
    function["parameters"] = Json::parse(
        R"({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": false})");
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

inline Json Body(const Json& more) {
  Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "Weather?"}}})}};
  body.update(more);
  return body;
}

inline Json Required(const char* choice = R"("required")") {
  return Body({{"tools", Tools()}, {"tool_choice", Json::parse(choice)}});
}

inline const char* const kNamed = R"({"type": "function", "function": {"name": "get_time"}})";

// A server that reports which outputs the grammar of the last request allows.
class GrammarServer : public AnsweringServer {
 public:
  using AnsweringServer::AnsweringServer;

  // Whether the grammar of the last request allows `text` as the whole output.
  bool Allows(const std::string& text) {
    const auto matcher = LastMatcher();
    EXPECT_TRUE(matcher);
    if (!matcher) return false;
    for (const int32_t id : world().model.tokenizer->Encode(text, false))
      if (!matcher->Accept(id)) return false;
    return matcher->CanEnd();
  }

  bool IsConstrained() { return LastMatcher() != nullptr; }

 private:
  std::unique_ptr<GrammarMatcher> LastMatcher() {
    uint64_t id = 0;
    for (const ControlMessage& message : world().link.sent) {
      if (const auto* tokens = std::get_if<GrammarTokens>(&message)) vocabulary_ = tokens->bytes;
      if (const auto* request = std::get_if<EngineRequest>(&message)) id = request->grammar;
    }
    for (const ControlMessage& message : world().link.sent) {
      const auto* grammar = std::get_if<DefineGrammar>(&message);
      if (!grammar || grammar->id != id) continue;
      const TokenTable table(GrammarVocabulary::Decode(vocabulary_));
      return std::make_unique<GrammarMatcher>(CompiledGrammar::FromBytes(grammar->bytes, table));
    }
    return nullptr;
  }

  std::string vocabulary_;
};

struct Format {
  const char* shape;  // name of the chat template
  std::vector<std::string> markers;
  std::string call;  // a call of get_weather in this format
};

// Formats whose arguments are JSON, with a call of get_weather.
inline std::vector<Format> JsonFormats(const std::string& arguments = R"({"city": "Rom"})") {
  const std::string json = R"({"name": "get_weather", "parameters": )" + arguments + "}";
  const std::string qwen =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " + arguments + "}\n</tool_call>";
  return {
      {"qwen3", {}, qwen},
      {"qwen3", {"<think>", "</think>", "<tool_call>", "</tool_call>"}, qwen},
      {"llama3_1", {"<|python_tag|>"}, json},
      {"mistral_v3",
       {"[TOOL_CALLS]"},
       R"([TOOL_CALLS][{"name": "get_weather", "arguments": )" + arguments + "}]"},
      {"mistral_v7",
       {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
       "[TOOL_CALLS]get_weather[ARGS]" + arguments},
      {"deepseek_v3",
       {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>"},
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n" +
           arguments + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"deepseek_v3_1",
       {},
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" + arguments +
           "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"kimi_k2",
       {"<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
        "<|tool_call_end|>", "<|tool_calls_section_end|>"},
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
       "<|tool_call_argument_begin|>" +
           arguments + "<|tool_call_end|><|tool_calls_section_end|>"},
      {"harmony",
       {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"},
       "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + arguments}};
}

}  // namespace switchyard::openai
