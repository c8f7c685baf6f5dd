// Parsers of the sampling fields that all endpoints share.
#pragma once

#include <string>
#include <vector>

#include "server/api/json_body.h"
#include "server/args/args.h"
#include "server/front/generation.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// Reads stop, no_stop_trim or include_stop_str_in_output, skip_special_tokens, stop_token_ids,
// ignore_eos, logit_bias, allowed_token_ids, bad_words, top_k, top_p, min_p, temperature and the
// penalties into `spec`. The present values of `spec` are the defaults. Throws RequestError for a
// malformed field.
void ParseSamplingFields(const Tokenizer& tokenizer, const Fields& f, GenerationSpec* spec);

// Returns the value of field `key` for prompt i, or nullptr if it is absent or null. The field has
// one value for all prompts, or a list of `prompts` values.
const Json* ValueForPrompt(const Fields& f, const char* key, size_t i, size_t prompts);

// Parses the request's name (rid or request_id): a list with one name per prompt, or one name. If
// several prompts share one name, prompt i gets the suffix "_<i>", as in SGLang.
void ParseRequestId(const Fields& f, const char* key, size_t i, size_t prompts,
                    GenerationSpec* spec);

// Returns `priority` for the scheduler, which admits larger values first. Requests without a
// priority come last, as in SGLang. Throws RequestError if the priority is not 0 and
// --enable-priority-scheduling is not set.
int32_t ParsePriority(const ServerArgs& args, const Fields& f);

// Combines cache_salt and extra_key of prompt i into one string.
std::string ParseCacheSalt(const Fields& f, size_t i, size_t prompts);

}  // namespace switchyard
