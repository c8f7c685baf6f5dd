// The OpenAI API of a server, as far as a chat uses it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "chat/answer.h"
#include "chat/http_client.h"

namespace switchyard::chat {

class ChatClient {
 public:
  // `has_key`: whether `http` sends a key, for messages.
  ChatClient(HttpClient http, bool has_key) : http_(std::move(http)), has_key_(has_key) {}

  const ServerUrl& url() const { return http_.url(); }

  // Returns `wanted`, or the server's first model if it is empty. Throws kNotFound with the names
  // of the models if the server has no such model.
  std::string ChooseModel(const std::string& wanted);

  // Streams the response to a request (Conversation::Request) into `answer`, and calls `part` for
  // each new text. If it throws, `answer` has the text that was received before. Errors: those of
  // HttpClient; kInvalid, kUnauthorized and kNotFound for the status 400, 401 and 404; kPeer for
  // other failures.
  void Ask(const std::string& request, Answer* answer,
           const std::function<void(const AnswerPart&)>& part);

 private:
  [[noreturn]] void Fail(const HttpClient::Response& response) const;

  HttpClient http_;
  const bool has_key_;
};

}  // namespace switchyard::chat
