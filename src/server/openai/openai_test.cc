// Responses of OpenAI's endpoints, with simulated ranks: fields that repeat the prompt or describe
// the cache, and errors.
#include "server/openai/openai.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "server/front/test_service.h"
#include "server/native/native.h"
#include "server/openai/test_requests.h"

namespace switchyard::openai {
namespace {

using ::testing::HasSubstr;

const std::string kChat = "/v1/chat/completions", kCompletions = "/v1/completions";

Json Message(const std::string& role, const Json& content) {
  return {{"role", role}, {"content", content}};
}

class OpenAiTest : public ::testing::Test {
 protected:
  explicit OpenAiTest(const std::string& fixture = "qwen3_moe")
      : world_(fixture), server_(http::ServerOptions()) {
    Register(server_, world_.service);
    native::Register(server_, world_.service);
    server_.Start();
    answer_ = world_.model.tokenizer->Decode(world_.link.answer.new_tokens, true);
  }

  std::string Post(const std::string& path, const Json& body, int status = 200) {
    return PostJson(server_.port(), path, body, status);
  }

  Json Ask(const std::string& path, const Json& body, int status = 200) {
    return Json::parse(Post(path, body, status));
  }

  // Returns the events of a stream, without the final [DONE].
  std::vector<Json> Stream(const std::string& path, Json body) {
    body["stream"] = true;
    return EventsOf(Post(path, body));
  }

  std::string ContentOf(const Json& body) {
    return Ask(kChat, body)["choices"][0]["message"]["content"].get<std::string>();
  }

  // The text of choice 0 in the events of a chat.
  static std::string TextOf(const std::vector<Json>& events) {
    std::string text;
    for (const Json& event : events) {
      for (const Json& choice : event["choices"]) {
        if (choice["index"] == 0) text += choice["delta"].value("content", "");
      }
    }
    return text;
  }

  TestService world_;
  http::Server server_;
  std::string answer_;
};

TEST_F(OpenAiTest, EchoRepeatsTheMessageThatTheAnswerContinues) {
  Json body = {{"continue_final_message", true}};
  body["messages"] = Json::array({Message("user", "Tell me"), Message("assistant", "Once upon")});
  EXPECT_EQ(ContentOf(body), answer_);
  body["echo"] = true;
  body["n"] = 2;
  const Json whole = Ask(kChat, body);
  ASSERT_EQ(whole["choices"].size(), 2u);
  for (const Json& choice : whole["choices"])
    EXPECT_EQ(choice["message"]["content"], Json("Once upon" + answer_));
  const std::vector<Json> events = Stream(kChat, body);
  EXPECT_EQ(TextOf(events), "Once upon" + answer_);
  EXPECT_EQ(events.at(0)["choices"][0]["delta"], Message("assistant", ""));
  EXPECT_EQ(events.at(1)["choices"][0]["delta"], Json::object({{"content", "Once upon"}}));
}

TEST_F(OpenAiTest, EchoRepeatsNoMessageOfAnotherRole) {
  Json body = {{"echo", true}};
  body["messages"] = Json::array({Message("assistant", "Once"), Message("user", "Now")});
  EXPECT_EQ(ContentOf(body), answer_);
  EXPECT_EQ(TextOf(Stream(kChat, body)), answer_);
}

TEST_F(OpenAiTest, PromptTextIsTheOutputOfTheTemplate) {
  Json body = {{"messages", Json::array({Message("user", "Hi")})}};
  EXPECT_FALSE(Ask(kChat, body).contains("prompt_text"));
  body["return_prompt_text"] = true;
  const std::string text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(Ask(kChat, body)["prompt_text"], Json(text));
  const std::vector<Json> events = Stream(kChat, body);
  EXPECT_EQ(events.at(0)["prompt_text"], Json(text));
  for (size_t i = 1; i < events.size(); ++i) EXPECT_FALSE(events[i].contains("prompt_text"));
  const Json completion = {{"prompt", "Hi"}, {"return_prompt_text", true}};
  EXPECT_EQ(Ask(kCompletions, completion, 400)["param"], "return_prompt_text");
}

TEST_F(OpenAiTest, FieldsOfMessagesAreRefusedForIds) {
  for (const char* field : {"echo", "add_special_tokens", "return_prompt_text"}) {
    Json body = {{"input_ids", {1, 2, 3}}};
    body[field] = true;
    const Json error = Ask(kChat, body, 400);
    EXPECT_EQ(error["param"], field);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(field));
    body[field] = false;
    Ask(kChat, body);
  }
}

TEST_F(OpenAiTest, CachedTokensAreListedByMemory) {
  const Json details = {{"device", 16}, {"host", 0}};
  const Json extension = Json::object({{"cached_tokens_details", details}});
  for (const std::string& path : {kChat, kCompletions}) {
    Json body = {{"prompt", "Hi"}};
    if (path == kChat) body = {{"messages", Json::array({Message("user", "Hi")})}};
    world_.link.answer.cached_tokens = 16;
    EXPECT_FALSE(Ask(path, body).contains("sglext"));
    body["return_cached_tokens_details"] = true;
    EXPECT_EQ(Ask(path, body)["sglext"], extension);
    body["stream_options"]["include_usage"] = true;
    const std::vector<Json> events = Stream(path, body);
    ASSERT_GE(events.size(), 3u);
    EXPECT_FALSE(events.back()["usage"].is_null());
    const Json& before_usage = events[events.size() - 2];
    EXPECT_EQ(before_usage["sglext"], extension);
    EXPECT_EQ(before_usage["choices"], Json::array());

    body.erase("stream_options");
    world_.link.answer.cached_tokens = 0;
    EXPECT_FALSE(Ask(path, body).contains("sglext"));
    for (const Json& event : Stream(path, body)) EXPECT_FALSE(event.contains("sglext"));
  }
  const Json native = {{"text", "Hi"}};
  EXPECT_TRUE(Ask("/generate", native)["meta_info"].at("cached_tokens_details").is_null());
  world_.link.answer.cached_tokens = 16;
  EXPECT_EQ(Ask("/generate", native)["meta_info"]["cached_tokens_details"], details);
}

TEST_F(OpenAiTest, ErrorsOfRanksNameNoDirectory) {
  world_.link.answer.finish = FinishReason::kError;
  world_.link.answer.error = "/usr/share/weights/a.safetensors: unreadable, see /v1/models";
  std::map<std::string, Json> bodies;
  bodies[kChat]["messages"] = Json::array({Message("user", "Hi")});
  bodies[kCompletions]["prompt"] = "Hi";
  bodies["/generate"]["text"] = "Hi";
  for (const auto& [path, body] : bodies) {
    const char* shown = "a.safetensors: unreadable, see /v1/models";
    EXPECT_EQ(Ask(path, body, 500)["message"], shown) << path;
    EXPECT_EQ(Stream(path, body).at(0)["message"], shown) << path;
  }
}

TEST_F(OpenAiTest, ModelsHaveTheMembersOfOpenAiAndVllm) {
  const std::string name = world_.model.name;
  const Json list = Json::parse(GetText(server_.port(), "/v1/models"));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  const Json& card = list["data"][0];
  EXPECT_EQ(card["id"], name);
  EXPECT_EQ(card["object"], "model");
  EXPECT_GT(card["created"], 0);
  EXPECT_EQ(card["owned_by"], "switchyard");
  EXPECT_EQ(card["root"], name);
  EXPECT_TRUE(card.at("parent").is_null());
  EXPECT_EQ(card["max_model_len"], 512);
  EXPECT_EQ(Json::parse(GetText(server_.port(), "/v1/models/" + name)), card);
  const Json missing = Json::parse(GetText(server_.port(), "/v1/models/other/name", 404));
  EXPECT_EQ(missing["error"]["code"], "model_not_found");
  EXPECT_EQ(missing["error"]["type"], "not_found_error");
  EXPECT_EQ(missing["error"]["param"], "model");
  EXPECT_THAT(missing["error"]["message"].get<std::string>(), HasSubstr("other/name"));
}

TEST_F(OpenAiTest, VersionIsThatOfTheProgram) {
  const Json version = Json::parse(GetText(server_.port(), "/version"));
  ASSERT_EQ(version.size(), 1u);
  EXPECT_THAT(version["version"].get<std::string>(),
              ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

class LlamaTest : public OpenAiTest {
 protected:
  LlamaTest() : OpenAiTest("llama") {}
};

TEST_F(LlamaTest, SpecialTokensAreAddedToThoseOfTheTemplate) {
  Json body = {{"messages", Json::array({Message("user", "Hi")})}};
  body["return_prompt_token_ids"] = true;
  const auto ids = [&](const std::string& path, const char* key) {
    return Ask(path, body)[key].get<std::vector<int32_t>>();
  };
  const std::vector<int32_t> plain = ids(kChat, "prompt_token_ids");
  std::vector<int32_t> added = plain;
  added.insert(added.begin(), world_.model.tokenizer->TokenToId("<|begin_of_text|>").value());
  EXPECT_EQ(ids("/tokenize", "tokens"), plain);
  body["add_special_tokens"] = true;
  EXPECT_EQ(ids(kChat, "prompt_token_ids"), added);
  EXPECT_EQ(ids("/tokenize", "tokens"), added);
  body["add_special_tokens"] = false;
  EXPECT_EQ(ids(kChat, "prompt_token_ids"), plain);
  EXPECT_EQ(ids("/tokenize", "tokens"), plain);
}

}  // namespace
}  // namespace switchyard::openai
