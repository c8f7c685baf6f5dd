// The events of a streamed answer, for their tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bench/serve/load.h"

namespace switchyard::bench {

// The request that a backend wants, streamed, with as many tokens as were planned whatever the
// model says.
std::string PathOf(const ServeOptions& options);
std::string BodyOf(const ServeOptions& options, const PlannedRequest& request);

// Takes an answer's body in pieces.
class AnswerStream {
 public:
  explicit AnswerStream(const ServeOptions& options) : cumulative_(options.backend == "sglang") {}

  // Takes whole events off the front of `bytes`; how many tokens they brought.
  int64_t Take(std::string& bytes);

  bool done() const { return done_; }  // "[DONE]" has come
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t output_tokens() const { return output_tokens_; }
  const std::string& error() const { return error_; }  // that an event told of

 private:
  void TakeEvent(std::string_view data);

  const bool cumulative_;  // events tell of all tokens so far; else each is one token
  bool done_ = false;
  int64_t prompt_tokens_ = 0, output_tokens_ = 0;
  std::string error_;
};

}  // namespace switchyard::bench
