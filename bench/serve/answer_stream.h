// Counts the tokens of a streamed response by its server-sent events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bench/serve/load.h"

namespace switchyard::bench {

// Path and body of a streaming request in the backend's format. The request ignores EOS, so that
// the response has the planned length.
std::string PathOf(const ServeOptions& options);
std::string BodyOf(const ServeOptions& options, const PlannedRequest& request);

// Parses a response body that arrives in pieces.
class AnswerStream {
 public:
  // `path`: of the request; /generate is SGLang's format.
  explicit AnswerStream(const std::string& path) : cumulative_(path == "/generate") {}

  // Removes complete events from the front of `bytes`; returns the number of tokens in them.
  int64_t Take(std::string& bytes);

  bool done() const { return done_; }  // "[DONE]" was received
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t output_tokens() const { return output_tokens_; }
  const std::string& error() const { return error_; }  // the error that an event reported

 private:
  void TakeEvent(std::string_view data);

  const bool cumulative_;  // true: events contain the total number of tokens; false: each event is
                           // one token
  bool done_ = false;
  int64_t prompt_tokens_ = 0, output_tokens_ = 0;
  std::string error_;
};

}  // namespace switchyard::bench
