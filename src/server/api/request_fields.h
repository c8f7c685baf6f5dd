// Fields of generation requests that several endpoints share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/api/json_body.h"
#include "server/args/args.h"
#include "server/front/front.h"
#include "server/front/generation.h"
#include "server/front/kv_transfers.h"
#include "server/front/service.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// Parsers of the sampling fields that all endpoints share.

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

// Maps the engine's parameter names to the client's field names, for error messages.

// Key: the engine's parameter, such as "max_new_tokens", or "prompt" for the prompt. Value: the
// client's field, such as "max_tokens". A parameter that is not in the map has the same name in the
// engine and for the client.
using ClientNames = std::map<std::string, std::string>;

// Rethrows the current exception of Front::Check as a RequestError with the client's field names.
// A ContextLengthError gets the code "context_length_exceeded". Call it from a catch block only.
[[noreturn]] void RethrowWithClientNames(const ClientNames& names);

// Expands a prompt into its n generations.

// Appends `n` copies of `spec` to `specs`, the generations of one request. With a seed, copy i has
// seed + i, so that copies of a prompt differ. Throws the errors of Front::Check with the client's
// field names, and RequestError if the request exceeds a limit (request_fields.cc). On an error,
// `specs` is unchanged.
void AddCopies(const Front& front, GenerationSpec spec, int64_t n, const ClientNames& names,
               std::vector<GenerationSpec>& specs);

// Parses the attention group (data-parallel rank) that a request selects.

// Reads `routed_dp_rank`, or `data_parallel_rank`, which is SGLang's earlier name of the field.
// Returns nullopt if both are absent. Throws RequestError if they differ.
std::optional<int32_t> ParseDataParallelRank(const Fields& f);

// Checks the "model" of a request.

// Throws RequestError (404, model_not_found) unless `name` is the served model.
void CheckModelName(const Service& service, const std::string& name);

// Checks the body's "model". Absent, "" or "default" means the served model.
void CheckModel(const Service& service, const Fields& f);

// The fields of a request to a prefill or a decode worker.

// SGLang's bootstrap_room (an integer from 0), bootstrap_host and bootstrap_port, for prompt `i` of
// `prompts`. Each field is one value for all prompts, or a list with one value for each. Returns
// nullopt without a room. A decode worker needs the host; the port's default is
// --disaggregation-bootstrap-port.
// Throws RequestError for other values.
std::optional<KvRoom> ParseBootstrap(const ServerArgs& args, const Fields& f, size_t i = 0,
                                     size_t prompts = 1);

}  // namespace switchyard
