// JSON of log-probabilities in the formats of OpenAI's two endpoints and of vLLM's prompt_logprobs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api/json_body.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard::openai {

// Text form of tokens. Does not own the tokenizer.
struct TokenStyle {
  const Tokenizer& tokenizer;
  bool as_ids = false;  // "token_id:17" (return_tokens_as_token_ids)
};

// {"content": […]} of chat completions. Each position lists the `top` most likely tokens, and the
// chosen token if it is not one of them. A negative `top` gives empty lists.
Json ChatLogprobs(const TokenStyle& style, const std::vector<PositionLogprobs>& positions,
                  int32_t top);

// Builds the parallel lists of /v1/completions.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const TokenStyle& style, int32_t top) : style_(style), top_(top) {}

  // `offsets[i]` + `shift` is the character offset of token i in the choice's text.
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

// vLLM's prompt_logprobs: null for the first position, then {"<id>": {logprob, rank,
// decoded_token}}.
Json PromptLogprobs(const Tokenizer& tokenizer, const std::vector<PositionLogprobs>& positions,
                    int32_t top);

}  // namespace switchyard::openai
