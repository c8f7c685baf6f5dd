// The prompts of one request for pooled vectors, and the response.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/api/accumulated.h"
#include "server/api/json_body.h"
#include "server/front/service.h"

namespace switchyard::pooling {

// Prompts of one request, in the order in which their results are returned.
struct Batch {
  std::string id;  // id of the response: the client's rid or request_id, or a new one
  int64_t created = 0;
  std::vector<GenerationSpec> specs;
};

enum class Wants { kVectors, kEmbeddings, kClasses };
// Checks "model", and all fields by the table of `kind`. Throws kInvalid if the model generates
// text, or if the request requires embeddings or classes and the model has none.
void CheckRequest(const Service& service, const Fields& f, RequestKind kind, Wants wants);

Batch NewBatch(const Fields& f, const char* id_prefix);

// The ids of a text. `special`: add the special tokens that the tokenizer puts around a text.
std::vector<int32_t> Encode(const Service& service, const Fields& f, const std::string& text,
                            bool special = true);
// The ids of two texts as one prompt: the first text, then the second text. The special tokens that
// surround a single text surround both together.
std::vector<int32_t> EncodePair(const Service& service, const Fields& f, const std::string& first,
                                const std::string& second);

// Prompts of field `key`: a string, a list of strings, a list of ids or a list of such lists.
// `*single` is set to true if the field has one prompt, not a list of prompts; `single` may be
// null.
std::vector<std::vector<int32_t>> ParsePrompts(const Service& service, const Fields& f,
                                               const char* key, bool* single = nullptr);

// Adds prompts to the batch. Reads the fields that all endpoints share: names, priority, group,
// salt, truncation. `key`: the prompts' field, for errors. `pooled`: false for a request to a model
// that generates text.
void AddPrompts(const Service& service, const Fields& f, const char* key,
                std::vector<std::vector<int32_t>> prompts, Batch* batch, bool pooled = true);

// Runs the batch, then sends the JSON text of `respond`, or the error of the first failed prompt.
using Respond = std::function<std::string(const Batch& batch, const std::vector<Accumulated>&)>;
void Run(Service& service, Batch batch, const http::Responder& responder, Respond respond);

// The usage of a response. No tokens are generated.
Json Usage(const std::vector<Accumulated>& all);

}  // namespace switchyard::pooling
