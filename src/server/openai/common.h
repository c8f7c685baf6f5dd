// What /v1/completions and /v1/chat/completions share.
#pragma once

#include <string>

#include "server/api/accumulated.h"
#include "server/api/json_body.h"
#include "server/front/service.h"

namespace switchyard::openai {

// Error kInvalid where the body names a model that is not served here.
void CheckModel(const Service& service, const Fields& f);

// Sampling fields of both endpoints, OpenAI's and the extensions that SGLang's clients send, into
// `spec`, defaults from the model. `max_new_tokens` where the body has no max_tokens.
void ParseSampling(const Service& service, const Fields& f, int32_t max_new_tokens,
                   GenerationSpec* spec);

// stream, stream_options.include_usage and n.
struct Delivery {
  bool stream = false;
  bool include_usage = false;
  int32_t n = 1;
};
Delivery ParseDelivery(const Fields& f);

// Adds finish_reason ("stop", "length", "abort"; null while it runs) and, where there is one,
// matched_stop.
void AddEnding(const GenerationEvent& event, Json& choice);

// Tokens of prompts (each counted once, although n copies share it) and of all outputs.
Json Usage(const std::vector<Accumulated>& all, int32_t n);

std::string NewId(const char* prefix);  // "chatcmpl-…", unique
int64_t Now();                          // seconds since 1970

}  // namespace switchyard::openai
