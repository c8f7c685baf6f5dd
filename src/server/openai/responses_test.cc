// OpenAI's Responses API: conversion of requests, items of responses, events of streams, the store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "server/openai/answering_server.h"
#include "server/openai/openai.h"
#include "server/openai/response_items.h"

namespace switchyard::openai {
namespace {

using ::testing::HasSubstr;

const std::string kPath = "/v1/responses";
const std::string kThought = "<think>\nSunny?\n</think>\n\n";
const std::string kCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>";

Json Request(const char* more = "{}") {
  Json body = Json::parse(R"({"input": "Hi", "tools": [
    {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]})");
  body.update(Json::parse(more));
  return body;
}

std::string Messages(const char* input) {
  const Json json = Json::object({{"input", Json::parse(input)}});
  try {
    return InputMessages(Fields(json)).dump();
  } catch (const RequestError& e) {
    return "error: " + e.param();
  }
}

TEST(ResponsesBody, ItemsBecomeMessages) {
  EXPECT_EQ(Messages(R"("Hi")"), R"([{"role":"user","content":"Hi"}])");
  EXPECT_EQ(Messages(R"([{"role": "developer", "content": "Be brief."},
                         {"type": "message", "role": "user",
                          "content": [{"type": "input_text", "text": "Hi"}]}])"),
            R"([{"role":"developer","content":"Be brief."},{"role":"user","content":"Hi"}])");
  EXPECT_EQ(Messages(R"([{"type": "reasoning", "summary": [],
                    "content": [{"type": "reasoning_text", "text": "hm"}]},
                   {"type": "message", "role": "assistant",
                    "content": [{"type": "output_text", "text": "Wait", "annotations": []}]},
                   {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                   {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c1", "output": "5"}])"),
            R"([{"role":"assistant","content":"Wait","reasoning_content":"hm","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},)"
            R"({"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]},)"
            R"({"role":"tool","tool_call_id":"c1","content":"5"}])");
}

TEST(ResponsesBody, MalformedRequestsAreNamed) {
  EXPECT_EQ(Messages("5"), "error: input");
  EXPECT_EQ(Messages("[5]"), "error: input[0]");
  EXPECT_EQ(Messages(R"([{"type": "computer_call"}])"), "error: input[0].type");
  EXPECT_EQ(Messages(R"([{"role": "user", "content": [{"type": "input_image"}]}])"),
            "error: input[0].content[0].type");
  EXPECT_EQ(Messages(R"([{"type": "function_call", "name": "f"}])"), "error: input[0].call_id");
  AnsweringServer server("qwen3");
  server.Answer("Hi");
  const auto param = [&](const char* more, int status = 400) {
    return server.Ask(kPath, Request(more), status)["param"].get<std::string>();
  };
  EXPECT_EQ(param(R"({"background": true})"), "background");
  EXPECT_EQ(param(R"({"truncation": "auto"})"), "truncation");
  EXPECT_EQ(param(R"({"tools": [{"type": "web_search"}]})"), "tools[0].type");
  EXPECT_EQ(param(R"({"tool_choice": {"type": "function", "name": "f"}})"), "tool_choice");
  EXPECT_EQ(param(R"({"text": {"format": {"type": "grammar"}}})"), "text.format.type");
  EXPECT_EQ(param(R"({"text": {"format": {"type": "json_schema", "name": "n"}}})"),
            "text.format.schema");
  EXPECT_EQ(param(R"({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}})"),
            "text.format.schema");
  EXPECT_EQ(param(R"({"include": ["file_search_call.results"]})"), "include");
  EXPECT_EQ(param(R"({"previous_response_id": "resp_x"})", 404), "previous_response_id");
}

TEST(Responses, ItemsAreReasoningMessagesAndCalls) {
  AnsweringServer server("qwen3");
  server.Answer(kThought + "Let me see.\n" + kCall);
  const Json answer = server.Ask(kPath, Request(R"({"metadata": {"a": "b"}})"));
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["metadata"]["a"], "b");
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("resp_"));
  const Json& output = answer["output"];
  ASSERT_EQ(output.size(), 3u) << output;
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"][0]["text"], "Sunny?");
  EXPECT_EQ(output[1]["content"][0]["text"], "Let me see.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["arguments"], R"({"city": "Rom"})");
  EXPECT_TRUE(output[2]["call_id"].get<std::string>().starts_with("call_"));
  EXPECT_GT(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 0);

  server.Answer("Cut", FinishReason::kLength);
  const Json cut = server.Ask(kPath, Request());
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
}

// Checks the order of the events, and that their concatenated deltas equal the items of the last
// event.
void CheckStream(const std::vector<Json>& events) {
  std::map<size_t, std::string> texts;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i];
    EXPECT_EQ(event["sequence_number"], i);
    const auto type = event["type"].get<std::string>();
    if (type.ends_with(".delta"))
      texts[event["output_index"].get<size_t>()] += event["delta"].get<std::string>();
    if (type == "response.output_text.done" || type == "response.reasoning_text.done") {
      EXPECT_EQ(event["text"], texts[event["output_index"].get<size_t>()]);
    }
    if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], texts[event["output_index"].get<size_t>()]);
    }
  }
  EXPECT_EQ(events.at(0)["type"], "response.created");
  EXPECT_EQ(events.at(1)["type"], "response.in_progress");
  const Json& output = events.back()["response"]["output"];
  std::vector<Json> done;
  for (const Json& event : events) {
    if (event["type"] == "response.output_item.done") done.push_back(event["item"]);
  }
  EXPECT_EQ(Json(done), output);
}

TEST(Responses, StreamsGiveTheSameItems) {
  AnsweringServer server("qwen3");
  for (const std::string& text : {fmt::format("{}Let me see.\n{}", kThought, kCall),
                                  std::string("Hi"), fmt::format("{}\n{}", kCall, kCall)}) {
    server.Answer(text);
    const std::vector<Json> events = server.Stream(kPath, Request());
    CheckStream(events);
    EXPECT_EQ(events.back()["type"], "response.completed");
    Json streamed = events.back()["response"], whole = server.Ask(kPath, Request());
    for (Json* response : {&streamed, &whole}) {
      for (const char* key : {"id", "created_at"}) response->erase(key);
      for (Json& item : (*response)["output"]) {
        item.erase("id");
        item.erase("call_id");
      }
    }
    EXPECT_EQ(streamed, whole);
  }
  server.Answer("Cut", FinishReason::kLength);
  EXPECT_EQ(server.Stream(kPath, Request()).back()["type"], "response.incomplete");
}

TEST(Responses, AStoredResponseCanBeContinuedReadAndDeleted) {
  AnsweringServer server("qwen3");
  server.Answer(kThought + kCall);
  const Json first = server.Ask(kPath, Request());
  const auto id = first["id"].get<std::string>();
  http::TestClient client(server.port());
  const auto request = [&](const std::string& method, const std::string& path) {
    client.Send(method + " " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return client.Read().value_or(http::TestResponse());
  };
  EXPECT_EQ(Json::parse(request("GET", kPath + "/" + id).body), first);
  EXPECT_THAT(request("GET", kPath + "/" + id + "/input_items").body, HasSubstr("Hi"));

  // The next prompt contains the call and its output.
  Json next = Request();
  next["previous_response_id"] = id;
  next["input"] = Json::array({{{"type", "function_call_output"},
                                {"call_id", first["output"][1]["call_id"]},
                                {"output", "12 degrees"}}});
  server.Answer("It is cold.");
  const Json second = server.Ask(kPath, next);
  EXPECT_EQ(second["previous_response_id"], Json(id));
  EXPECT_GT(second["usage"]["input_tokens"].get<int>(), first["usage"]["input_tokens"].get<int>());

  EXPECT_EQ(request("DELETE", kPath + "/" + id).status, 200);
  EXPECT_EQ(request("GET", kPath + "/" + id).status, 404);
  const Json unstored = server.Ask(kPath, Request(R"({"store": false})"));
  EXPECT_EQ(request("GET", kPath + "/" + unstored["id"].get<std::string>()).status, 404);
}

TEST(ResponseStoreTest, TheOldestResponsesAreRemoved) {
  ResponseStore store({.responses = 2, .bytes = 10});
  store.Put("a", {.response = "1", .messages = {}, .input = {}});
  store.Put("b", {.response = "22", .messages = {}, .input = {}});
  store.Put("c", {.response = "3", .messages = {}, .input = {}});
  EXPECT_FALSE(store.Find("a"));
  EXPECT_TRUE(store.Find("b") && store.Find("c"));
  store.Put("d", {.response = "123456789", .messages = {}, .input = {}});
  EXPECT_FALSE(store.Find("b"));
  EXPECT_TRUE(store.Find("c") && store.Find("d"));
  store.Put("e", {.response = "12345678901", .messages = {}, .input = {}});
  EXPECT_FALSE(store.Find("e"));
  EXPECT_TRUE(store.Erase("d"));
  EXPECT_FALSE(store.Erase("d"));
}

}  // namespace
}  // namespace switchyard::openai
