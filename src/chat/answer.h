// An answer of a model, from the events of a streamed chat completion.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard::chat {

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
// Shortened and without control characters (Shortened of safe_text.h).
std::string ErrorMessageOf(std::string_view body);

}  // namespace switchyard::chat
