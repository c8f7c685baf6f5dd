// Parsing and response parts shared by /v1/completions and /v1/chat/completions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/accumulated.h"
#include "server/api/json_body.h"
#include "server/api/request_fields.h"
#include "server/front/service.h"

namespace switchyard::openai {

// Reads the sampling fields of both endpoints into `spec`: OpenAI's, and extensions of SGLang and
// vLLM, except constraints of the output. The defaults are those of the model. `max_new_tokens` is
// the default of max_tokens.
void ParseSampling(const Service& service, const Fields& f, int32_t max_new_tokens,
                   GenerationSpec* spec);

// Log-probabilities that the response has to contain.
struct WantedLogprobs {
  bool output = false;
  int32_t top = -1;         // top_logprobs per position; −1: no list, 0: only the chosen token
  int32_t prompt_top = -1;  // vLLM's prompt_logprobs; −1: not requested
  bool as_ids = false;      // return_tokens_as_token_ids
};

// Reads prompt_logprobs and return_tokens_as_token_ids into `wanted`. Sets `spec->logprob` to the
// values that the ranks have to compute for `wanted`. With `echo`, they include the prompt's
// log-probabilities.
void ParsePromptLogprobs(const Service& service, const Fields& f, bool echo, WantedLogprobs* wanted,
                         GenerationSpec* spec);

// The `limit` for Tokenizer::Encode. Tokenization stops at the longest prompt that the engine
// accepts, unless truncate_prompt_tokens is set.
size_t PromptLimit(const Service& service, const Fields& f);

// Truncates `ids` according to truncate_prompt_tokens and truncation_side. Returns whether ids were
// removed.
bool TruncatePrompt(const Service& service, const Fields& f, const GenerationSpec& spec,
                    std::vector<int32_t>& ids);

// Maps the engine's parameters in errors of Front::Check to this body's fields. `prompt` is the
// name of the prompt's field; `top` is the name of the field with the number of alternatives.
ClientNames ClientNamesOf(const Fields& f, const char* prompt, const char* top);

// The id of a response: the client's rid, as in SGLang, or "<prefix><request_id>", as in vLLM, or a
// new one. `prefix` ends with a dash or an underscore.
std::string AnswerId(const Fields& f, const char* prefix);

// Members that all responses share, and the options of a stream.
struct Delivery {
  std::string id;  // "chatcmpl-…", or from the client's rid or request_id
  int64_t created = 0;
  std::string model, fingerprint;
  std::string event_head;  // JSON of each stream event, up to the value of "choices"
  bool stream = false;
  bool include_usage = false;     // stream_options: the last event has the usage
  bool continuous_usage = false;  // stream_options: every event has the usage so far
  bool token_ids = false;         // return_token_ids
  bool cached_details = false;    // return_cached_tokens_details
  int32_t n = 1;
};
// Throws RequestError if n, best_of, stream and stream_options are invalid or inconsistent.
// `event_object`: the member "object" of stream events.
Delivery ParseDelivery(const Service& service, const Fields& f, const char* id_prefix,
                       const char* event_object);

// Common members of a response and of each stream event.
Json Envelope(const Delivery& delivery, const char* object, Json choices);

// Returns a stream event. `usage` is omitted unless stream_options requests it. `more`: an object
// with further members.
std::string StreamEvent(const Delivery& delivery, const Json& choices, const Json& usage,
                        const Json& more = Json::object());

// Adds finish_reason ("stop", "tool_calls", "length" or "abort"; null while running) and
// matched_stop (null if no stop matched). `calls`: the choice has tool calls.
void AddEnding(const GenerationEvent& event, Json& choice, bool calls = false);

// Usage of all choices. The prompt of n copies is counted once. `reasoning`: number of reasoning
// tokens, if reasoning is separated from the content. Requests with drafts also get the numbers of
// accepted and rejected ones.
Json Usage(const std::vector<Accumulated>& all, int32_t n,
           std::optional<int64_t> reasoning = std::nullopt);

// SGLang's `sglext` member: details of the cached prompt tokens of the first choice. null if the
// request does not set return_cached_tokens_details, or no token was cached.
Json SglExt(const Delivery& delivery, const std::vector<Accumulated>& all);

// Usage of one choice after event `last`; null without continuous_usage. `opening`: the event comes
// before the first token, so it counts 0 completion tokens.
Json UsageSoFar(const Delivery& delivery, const GenerationEvent& last, bool opening = false,
                std::optional<int64_t> reasoning = std::nullopt);

int64_t Now();  // seconds since 1970

}  // namespace switchyard::openai
