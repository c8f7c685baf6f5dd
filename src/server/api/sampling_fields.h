// Fields of a request's sampling that every endpoint reads in the same way.
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
// penalties into `spec`, whose values are the defaults. RequestError where one is malformed.
void ParseSamplingFields(const Tokenizer& tokenizer, const Fields& f, GenerationSpec* spec);

// One value for all prompts, or a list with one for each of `prompts`: the i-th. Null where absent.
const Json* ForPrompt(const Fields& f, const char* key, size_t i, size_t prompts);

// rid: a list with a name for each prompt, or one name, which several prompts share with "_0",
// "_1", … behind it, as SGLang has it.
void ParseRequestName(const Fields& f, const char* key, size_t i, size_t prompts,
                      GenerationSpec* spec);

// `priority` as the scheduler orders it: larger first, requests without one last (SGLang's rule).
// RequestError where it is not 0 without --enable-priority-scheduling.
int32_t ParsePriority(const ServerArgs& args, const Fields& f);

// cache_salt and extra_key of prompt i, as one.
std::string ParseCacheSalt(const Fields& f, size_t i, size_t prompts);

}  // namespace switchyard
