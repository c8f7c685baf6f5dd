// What /v1/completions and /v1/chat/completions share.
#pragma once

#include <string>
#include <vector>

#include "server/api/accumulated.h"
#include "server/api/client_names.h"
#include "server/api/json_body.h"
#include "server/front/service.h"

namespace switchyard::openai {

// Sampling fields of both endpoints, OpenAI's and the extensions of SGLang's and vLLM's clients,
// into `spec`, defaults from the model. `max_new_tokens` where the body has no max_tokens.
void ParseSampling(const Service& service, const Fields& f, int32_t max_new_tokens,
                   GenerationSpec* spec);

// Which log-probabilities the answer shows.
struct WantedLogprobs {
  bool output = false;
  int32_t top = -1;         // alternatives at each position; −1: none, not even the token
  int32_t prompt_top = -1;  // vLLM's prompt_logprobs; −1: not asked for
  bool as_ids = false;      // return_tokens_as_token_ids
};

// Reads prompt_logprobs and return_tokens_as_token_ids, and writes into `spec` what the ranks have
// to compute for `wanted`, `echo` with the prompt's own.
void ParsePromptLogprobs(const Service& service, const Fields& f, bool echo, WantedLogprobs* wanted,
                         GenerationSpec* spec);

// As of Tokenizer::Encode: a prompt that the engine refuses is not tokenized to its end, unless
// truncate_prompt_tokens cuts it.
size_t PromptLimit(const Service& service, const Fields& f);

// truncate_prompt_tokens and truncation_side: cuts `ids`, and says whether it did.
bool TruncatePrompt(const Service& service, const Fields& f, const GenerationSpec& spec,
                    std::vector<int32_t>& ids);

// The fields by which this body has parameters that Front::Check names. `prompt`: of the prompt,
// `top`: of the number of alternatives.
ClientNames NamesOf(const Fields& f, const char* prompt, const char* top);

// How an answer is delivered: its identity, its parts, its events.
struct Delivery {
  std::string id;  // "chatcmpl-…", or as the client named the request
  int64_t created = 0;
  std::string model, fingerprint;
  bool stream = false;
  bool include_usage = false;     // stream_options: a last event with the usage
  bool continuous_usage = false;  // and every event with the usage so far
  bool token_ids = false;         // return_token_ids
  int32_t n = 1;
};
// RequestError for n, best_of, stream and stream_options that do not fit together.
Delivery ParseDelivery(const Service& service, const Fields& f, const char* id_prefix);

// The members of every answer and every event.
Json Envelope(const Delivery& delivery, const char* object, Json choices);

// Adds finish_reason ("stop", "length", "abort"; null while it runs) and matched_stop, null where
// there is none.
void AddEnding(const GenerationEvent& event, Json& choice);

// Tokens of prompts (each counted once, although n copies share it) and of all outputs.
Json Usage(const std::vector<Accumulated>& all, int32_t n);

// Of one choice with an event, null where events have no usage. `opening`: before its first token.
Json UsageSoFar(const Delivery& delivery, const GenerationEvent& last, bool opening = false);

int64_t Now();  // seconds since 1970

}  // namespace switchyard::openai
