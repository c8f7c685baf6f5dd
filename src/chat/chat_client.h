// The client of a chat: one request, the events of its response, and the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/http_client.h"

namespace switchyard::chat {

// An answer of a model, from the events of a streamed chat completion.

// New text of one event.
struct AnswerPart {
  std::string reasoning, content;
};

// Collects the events of one response. Fields of unexpected types are ignored, as other servers add
// fields of their own.
class Answer {
 public:
  // `data`: data of an event. Throws Error kPeer if it is not a JSON object, or if it is an error
  // of the server.
  AnswerPart Take(std::string_view data);

  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::string& finish_reason() const { return finish_reason_; }  // "": none yet
  bool done() const { return done_; }                                  // "[DONE]" was received
  int64_t prompt_tokens() const { return prompt_tokens_; }  // of the usage; -1: not received
  int64_t output_tokens() const { return output_tokens_; }  // of the usage; -1: not received

 private:
  std::string content_, reasoning_, finish_reason_;
  bool done_ = false;
  int64_t prompt_tokens_ = -1, output_tokens_ = -1;
};

// The message of an OpenAI-style error body {"error": {"message": ...}}, or the body itself.
// Shortened and without control characters (Shortened of screen.h).
std::string ErrorMessageOf(std::string_view body);

// Server-sent events, as the HTML standard defines them (section 9.2.6), in a body that arrives in
// pieces.

class EventStream {
 public:
  // Longest line and longest data of an event in bytes; longer ones are an Error kPeer.
  static constexpr size_t kMaxEvent = size_t{64} << 20;

  // Calls `event` with the data of each event that the bytes complete. Comments, empty events and
  // fields other than "data" are skipped.
  void Feed(std::string_view bytes, const std::function<void(std::string_view data)>& event);

 private:
  void TakeLine(const std::function<void(std::string_view)>& event);

  std::string line_;           // begin of a line without its end
  std::string data_;           // lines of the event's data
  bool has_data_ = false;      // the event has a data line, which may be empty
  bool after_return_ = false;  // the last byte was \r; a following \n belongs to the same line end
};

// The OpenAI API of a server, as far as a chat uses it.

class ChatClient {
 public:
  // `has_key`: whether `http` sends a key, for messages.
  ChatClient(HttpClient http, bool has_key) : http_(std::move(http)), has_key_(has_key) {}

  const ServerUrl& url() const { return http_.url(); }

  // Returns `wanted`, or the server's first model if `wanted` is empty. Throws kNotFound with the
  // names of the models if the server has no such model.
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
