// Log-probabilities as OpenAI's two endpoints and vLLM's prompt_logprobs show them: one account of
// token text, bytes, offsets and keys.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api/json_body.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard::openai {

// How tokens are written. Borrows the tokenizer.
struct TokenStyle {
  const Tokenizer& tokenizer;
  bool as_ids = false;  // "token_id:17" (return_tokens_as_token_ids)
};

// {"content": […]} of chat completions. Each position has `top` alternatives and, wherever that is
// not among them, the token itself; none where `top` is below 0.
Json ChatLogprobs(const TokenStyle& style, const std::vector<PositionLogprobs>& positions,
                  int32_t top);

// The parallel lists of /v1/completions.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const TokenStyle& style, int32_t top) : style_(style), top_(top) {}

  // `offsets`: for each position, in characters, where the token begins behind `shift` characters.
  void Add(const std::vector<PositionLogprobs>& positions, std::span<const int64_t> offsets,
           int64_t shift);
  Json Take();

 private:
  Json Alternatives(const PositionLogprobs& p) const;

  const TokenStyle style_;
  const int32_t top_;
  Json tokens_ = Json::array(), logprobs_ = Json::array(), offsets_ = Json::array(),
       tops_ = Json::array();
};

// vLLM's list: null for the first position, then {"<id>": {logprob, rank, decoded_token}}.
Json PromptLogprobs(const Tokenizer& tokenizer, const std::vector<PositionLogprobs>& positions,
                    int32_t top);

}  // namespace switchyard::openai
