// Parts of responses: messages of chats, log-probabilities, text of prompts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api/chat_output.h"
#include "server/api/json_body.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard::openai {

// JSON of parsed outputs in the format of /v1/chat/completions.

// The message of a choice. `echo`: put before the content. The content is null if there are only
// tool calls.
Json MessageOf(const OutputPlan& plan, const std::vector<OutputEvent>& events,
               const std::string& echo);

// Deltas of a stream. Each delta has either reasoning, content or one call, because clients expect
// no combinations.
std::vector<Json> DeltasOf(const std::vector<OutputEvent>& events);

// JSON of log-probabilities in the formats of OpenAI's two endpoints and of vLLM's prompt_logprobs.

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

// Text and token offsets of a prompt, for `echo`.

struct PromptText {
  std::string text;
  std::vector<int64_t> offsets;  // start of each token, in characters
  int64_t length = 0;            // characters of `text`
};

// For a prompt that the client sent as `text`: the unchanged text, and the offsets of its tokens. A
// token that is not in the text (a begin-of-sequence token, a normalized character) gets the end of
// the previous token as its offset.
PromptText PromptSentAsText(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                            std::string text);

// For a prompt that the client sent as ids: their text, including special tokens.
PromptText PromptSentAsIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

}  // namespace switchyard::openai
