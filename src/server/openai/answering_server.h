// A server whose model gives a fixed output, for tests of parsed outputs.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/temporary_directory.h"
#include "server/anthropic/messages.h"
#include "server/front/test_service.h"
#include "server/native/native.h"
#include "server/openai/openai.h"
#include "server/openai/test_requests.h"
#include "server/openapi/openapi.h"
#include "server/pooling/pooling.h"

namespace switchyard {

// A checkpoint directory with a template of tests/data/chat/shapes, a fixture's tokenizer, and
// markers as special tokens.
class TestCheckpoint {
 public:
  TestCheckpoint(const std::string& shape, const std::vector<std::string>& markers) {
    const std::filesystem::path data = SWITCHYARD_TEST_DATA;
    Json tokenizer = Json::parse(ReadAll(data / "fixtures/qwen3/tokenizer.json"));
    Json config = Json::parse(ReadAll(data / "fixtures/qwen3/config.json"));
    auto id = config["vocab_size"].get<int>();
    for (const std::string& marker : markers) {
      tokenizer["added_tokens"].push_back(
          {{"id", id++}, {"content", marker}, {"normalized", false}, {"special", true}});
    }
    config["vocab_size"] = id;
    std::ofstream(dir_ / "tokenizer.json") << tokenizer.dump();
    std::ofstream(dir_ / "config.json") << config.dump();
    std::filesystem::copy_file(data / "chat/shapes" / (shape + ".jinja"),
                               dir_ / "chat_template.jinja");
  }
  TestCheckpoint(const TestCheckpoint&) = delete;
  TestCheckpoint& operator=(const TestCheckpoint&) = delete;

  const std::filesystem::path& dir() const { return dir_; }

 private:
  static std::string ReadAll(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in) << path;
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  const TemporaryDirectory temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
};

// A server with all APIs. Its simulated model gives every request the same output, which Answer
// sets.
class AnsweringServer {
 public:
  explicit AnsweringServer(const std::string& shape, const std::vector<std::string>& markers = {},
                           ServerArgs args = {})
      : checkpoint_(shape, markers),
        world_(WithModel(std::move(args), checkpoint_.dir()), 4096),
        server_(http::ServerOptions()) {
    openai::Register(server_, world_.service);
    anthropic::Register(server_, world_.service);
    native::Register(server_, world_.service);
    pooling::Register(server_, world_.service);
    openapi::Register(server_, world_.service);
    server_.Start();
    world_.link.one_by_one = true;
  }

  // Sets the text of all outputs, and their finish reason. kStop: the model ends the output itself.
  void Answer(const std::string& text, FinishReason finish = FinishReason::kStop) {
    RequestOutput& answer = world_.link.answer;
    answer.new_tokens = world_.model.tokenizer->Encode(text, false);
    if (finish == FinishReason::kStop)
      answer.new_tokens.push_back(*world_.model.tokenizer->TokenToId("<|im_end|>"));
    answer.finish = finish;
  }

  std::string Post(const std::string& path, const Json& body, int status = 200) {
    return PostJson(server_.port(), path, body, status);
  }

  Json Ask(const std::string& path, const Json& body, int status = 200) {
    return Json::parse(Post(path, body, status));
  }

  // The data of all events of a stream, without [DONE].
  std::vector<Json> Stream(const std::string& path, Json body) {
    body["stream"] = true;
    return EventsOf(Post(path, body));
  }

  TestService& world() { return world_; }
  const http::Router& router() const { return server_.router(); }
  int port() const { return server_.port(); }

 private:
  static ServerArgs WithModel(ServerArgs args, const std::filesystem::path& dir) {
    args.engine.model_path = dir;
    return args;
  }

  TestCheckpoint checkpoint_;
  TestService world_;
  http::Server server_;
};

}  // namespace switchyard
