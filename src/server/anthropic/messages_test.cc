// Anthropic's Messages API: conversion of requests, blocks of responses, events of streams.
#include "server/anthropic/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/openai/answering_server.h"

namespace switchyard::anthropic {
namespace {

const std::string kPath = "/v1/messages";
const std::string kThought = "<think>\nSunny?\n</think>\n\n";
const std::string kCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>";

Json Request(const char* more = "{}") {
  Json body = Json::parse(R"({"max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"name": "get_weather", "input_schema": {"type": "object"}}]})");
  body.update(Json::parse(more));
  return body;
}

std::string ChatBody(const char* body) {
  const Json json = Json::parse(body);
  try {
    return ChatBodyOf(Fields(json)).dump();
  } catch (const RequestError& e) {
    return "error: " + e.param();
  }
}

TEST(AnthropicMessages, RequestsBecomeChats) {
  EXPECT_EQ(
      ChatBody(R"({"messages": [{"role": "user", "content": "Hi"}], "system": "Be brief.",
                         "max_tokens": 5, "stop_sequences": ["a"], "top_k": 3})"),
      R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}],)"
      R"("max_tokens":5,"top_k":3,"stop":["a"]})");
  EXPECT_EQ(
      ChatBody(R"({"messages": [
        {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "Wait"},
          {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "5"}]},
          {"type": "text", "text": "So?"}]}]})"),
      R"({"messages":[{"role":"assistant","content":"Wait","reasoning_content":"hm","tool_calls":)"
      R"([{"id":"c1","type":"function","function":{"name":"f","arguments":{"a":1}}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"5"},{"role":"user","content":"So?"}]})");
}

TEST(AnthropicMessages, ALastAssistantMessageIsContinued) {
  const auto continued = [](const char* last) {
    const Json body = Json::parse(
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": )" +
        std::string(last) + "}]}");
    return ChatBodyOf(Fields(body)).contains("continue_final_message");
  };
  EXPECT_TRUE(continued(R"("The answer is")"));
  EXPECT_TRUE(continued(R"([{"type": "text", "text": "The answer is"}])"));
  EXPECT_FALSE(continued(R"("")"));
  EXPECT_FALSE(continued(R"([{"type": "tool_use", "id": "c1", "name": "f", "input": {}}])"));
  AnsweringServer server("qwen3");
  server.Answer(" four.");
  const Json begun = {{"role", "assistant"}, {"content", "The answer is"}};
  Json body = Request();
  const Json whole = server.Ask(kPath, body);
  body["messages"].push_back(begun);
  const Json answer = server.Ask(kPath, body);
  EXPECT_EQ(answer["content"][0]["text"], " four.");
  EXPECT_GT(answer["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
}

TEST(AnthropicMessages, ToolsAndThinkingBecomeFieldsOfChats) {
  const auto field = [](const char* more, const char* key) {
    Json body = Request(more);
    return ChatBodyOf(Fields(body)).value(key, Json()).dump();
  };
  EXPECT_EQ(field("{}", "tools"),
            R"([{"type":"function","function":{"name":"get_weather","description":"",)"
            R"("parameters":{"type":"object"}}}])");
  EXPECT_EQ(field(R"({"tool_choice": {"type": "any"}})", "tool_choice"), R"("required")");
  EXPECT_EQ(field(R"({"tool_choice": {"type": "tool", "name": "f"}})", "tool_choice"),
            R"({"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(field(R"({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})",
                  "parallel_tool_calls"),
            "false");
  EXPECT_EQ(
      field(R"({"thinking": {"type": "enabled", "budget_tokens": 9}})", "chat_template_kwargs"),
      R"({"thinking":true,"enable_thinking":true})");
}

TEST(AnthropicMessages, MalformedRequestsAreNamed) {
  const auto error = [](const char* message) {
    return ChatBody((R"({"messages": [)" + std::string(message) + "]}").c_str());
  };
  EXPECT_EQ(ChatBody("{}"), "error: messages");
  EXPECT_EQ(error("5"), "error: messages[0]");
  EXPECT_EQ(error(R"({"role": "wizard", "content": ""})"), "error: messages[0].role");
  EXPECT_EQ(error(R"({"role": "user"})"), "error: messages[0].content");
  EXPECT_EQ(error(R"({"role": "user", "content": [{"type": "image"}]})"),
            "error: messages[0].content[0].type");
  EXPECT_EQ(error(R"({"role": "user", "content": [{"type": "text"}]})"),
            "error: messages[0].content[0].text");
  EXPECT_EQ(error(R"({"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]})"),
            "error: messages[0].content[0].id");
  AnsweringServer server("qwen3");
  server.Answer("Hi");
  const auto param = [&](const char* more) {
    return server.Ask(kPath, Request(more), 400)["param"].get<std::string>();
  };
  EXPECT_EQ(param(R"({"max_tokens": null})"), "max_tokens");
  EXPECT_EQ(param(R"({"mcp_servers": [{"url": "x"}]})"), "mcp_servers");
  EXPECT_EQ(param(R"({"tools": [{"type": "web_search_20250305", "name": "s"}]})"), "tools[0].type");
  EXPECT_EQ(param(R"({"tool_choice": {"type": "tool", "name": "f"}})"), "tool_choice");
  EXPECT_EQ(param(R"({"tool_choice": {"type": "some"}})"), "tool_choice.type");
  EXPECT_EQ(param(R"({"output_format": {"type": "json_schema"}})"), "output_format.schema");
  EXPECT_EQ(param(R"({"output_format": {"type": "json_schema", "schema": {"not": {}}}})"),
            "output_format.schema");
  EXPECT_EQ(param(R"({"output_config": {"format": {"type": "json_schema",
                     "schema": {"not": {}}}}})"),
            "output_config.format.schema");
  EXPECT_EQ(param(R"({"output_config": {"effort": "high"}})"), "output_config.effort");
  EXPECT_EQ(param(R"({"thinking": {"type": "deep"}})"), "thinking.type");
}

TEST(AnthropicMessages, ResponsesHaveBlocks) {
  AnsweringServer server("qwen3");
  server.Answer(kThought + "Let me see.\n" + kCall);
  const Json answer = server.Ask(kPath, Request());
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  const Json& content = answer["content"];
  ASSERT_EQ(content.size(), 3u) << content;
  EXPECT_EQ(content[0]["thinking"], "Sunny?");
  EXPECT_EQ(content[1]["text"], "Let me see.");
  EXPECT_EQ(content[2]["name"], "get_weather");
  EXPECT_EQ(content[2]["input"].dump(), R"({"city":"Rom"})");
  EXPECT_GT(answer["usage"]["input_tokens"], 0);
  EXPECT_GT(answer["usage"]["output_tokens"], 0);

  server.Answer("Done", FinishReason::kLength);
  EXPECT_EQ(server.Ask(kPath, Request())["stop_reason"], "max_tokens");
  const Json stopped = server.Ask(kPath, Request(R"({"stop_sequences": ["n"]})"));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "n");
  EXPECT_EQ(stopped["content"][0]["text"], "Do");
}

// Joins the blocks of a stream, as Anthropic's clients do.
Json Joined(const std::vector<Json>& events) {
  Json message;
  std::vector<std::string> inputs;
  for (const Json& event : events) {
    const auto type = event["type"].get<std::string>();
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      inputs.emplace_back();
    }
    if (type == "content_block_delta") {
      const auto index = event["index"].get<size_t>();
      const Json& delta = event["delta"];
      for (const char* key : {"text", "thinking"}) {
        if (delta.contains(key))
          message["content"][index][key].get_ref<std::string&>() += delta[key].get<std::string>();
      }
      inputs[index] += delta.value("partial_json", "");
    }
    if (type == "content_block_stop") {
      const auto index = event["index"].get<size_t>();
      if (!inputs[index].empty()) message["content"][index]["input"] = Json::parse(inputs[index]);
    }
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  EXPECT_EQ(events.back()["type"], "message_stop");
  return message;
}

TEST(AnthropicMessages, StreamsGiveTheSameMessage) {
  AnsweringServer server("qwen3");
  for (const std::string& text : {fmt::format("{}Let me see.\n{}", kThought, kCall),
                                  std::string("Hi"), fmt::format("{}\n{}", kCall, kCall)}) {
    server.Answer(text);
    Json whole = server.Ask(kPath, Request());
    Json streamed = Joined(server.Stream(kPath, Request()));
    for (Json* message : {&whole, &streamed}) {
      message->erase("id");
      for (Json& block : (*message)["content"]) block.erase("id");
    }
    EXPECT_EQ(streamed, whole) << text;
  }
  EXPECT_THAT(server.Post(kPath, Request(R"({"stream": true})")),
              ::testing::HasSubstr("event: message_start\ndata: {\"type\":\"message_start\""));
}

TEST(AnthropicMessages, ArgumentsThatAreNotJsonAreKeptAsText) {
  AnsweringServer server("qwen3");
  server.Answer("<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lon",
                FinishReason::kLength);
  EXPECT_EQ(server.Ask(kPath, Request())["content"][0]["input"].dump(),
            R"({"arguments":"{\"city\": \"Lon"})");
  const std::string deep(5000, '[');
  server.Answer("<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"a\": " + deep,
                FinishReason::kLength);
  EXPECT_TRUE(server.Ask(kPath, Request())["content"][0]["input"].contains("arguments"));
}

TEST(AnthropicMessages, LargeIntegersOfArgumentsKeepTheirDigits) {
  AnsweringServer server("qwen3");
  server.Answer(
      "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": "
      "[-123456789012345678901234567890123, 1.5, \"ü\", {}, []]}}</tool_call>",
      FinishReason::kStop);
  EXPECT_THAT(server.Post(kPath, Request()),
              ::testing::HasSubstr(
                  R"("input":{"city":[-123456789012345678901234567890123,1.5,"ü",{},[]]})"));
}

TEST(AnthropicMessages, TokensAreCounted) {
  AnsweringServer server("qwen3");
  server.Answer("Hi");
  const Json counted = server.Ask(kPath + "/count_tokens", Request());
  EXPECT_EQ(counted["input_tokens"], server.Ask(kPath, Request())["usage"]["input_tokens"]);
}

TEST(AnthropicMessages, FailuresAreErrors) {
  AnsweringServer server("qwen3");
  server.world().link.answer = {.finish = FinishReason::kError};
  server.world().link.answer.error = "/usr/share/weights/a.safetensors: unreadable";
  EXPECT_EQ(server.Ask(kPath, Request(), 500)["error"]["message"], "a.safetensors: unreadable");
  const Json error = server.Stream(kPath, Request()).at(0);
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["message"], "a.safetensors: unreadable");
}

}  // namespace
}  // namespace switchyard::anthropic
