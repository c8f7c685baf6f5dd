#include "server/pooling/batch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/api/guarded.h"
#include "server/api/pending_response.h"
#include "server/api/request_fields.h"
#include "server/http/error_body.h"
#include "server/openai/common.h"

namespace switchyard::pooling {
namespace {

// The limit for Tokenizer::Encode: one token more than the longest prompt, so that a longer text is
// detected. With truncate_prompt_tokens there is no limit.
size_t Limit(const Service& service, const Fields& f) {
  return f.Has("truncate_prompt_tokens") ? Tokenizer::kNoLimit
                                         : static_cast<size_t>(service.front.longest()) + 1;
}

}  // namespace

void CheckRequest(const Service& service, const Fields& f, RequestKind kind,
                  RequiredOutput required) {
  CheckModel(service, f);
  service.front.CheckTask(/*pooled=*/true);
  CheckFields(f, kind, service.unknown_fields);
  const bool classifies = service.model.config.pooling->classifies();
  if (required == RequiredOutput::kClasses && !classifies)
    throw Invalid("this model is not a classifier: use POST /v1/embeddings");
  if (required == RequiredOutput::kEmbeddings && classifies)
    throw Invalid("this model is a classifier and has no embeddings: use POST /classify");
}

Batch NewBatch(const Fields& f, const char* id_prefix) {
  return {.id = openai::AnswerId(f, id_prefix), .created = openai::Now(), .specs = {}};
}

std::vector<int32_t> Encode(const Service& service, const Fields& f, const std::string& text,
                            bool special) {
  return service.model.tokenizer->Encode(text, special, Limit(service, f));
}

std::vector<int32_t> EncodePair(const Service& service, const Fields& f, const std::string& first,
                                const std::string& second) {
  const std::vector<int32_t> plain = Encode(service, f, first, /*special=*/false);
  std::vector<int32_t> pair = Encode(service, f, first);
  const auto found = std::ranges::search(pair, plain);
  const std::vector<int32_t> more = Encode(service, f, second, /*special=*/false);
  pair.insert(found.end(), more.begin(), more.end());
  return pair;
}

std::vector<std::vector<int32_t>> ParsePrompts(const Service& service, const Fields& f,
                                               const char* key, bool* single) {
  const Json* field = f.Find(key);
  if (!field) throw InvalidField(key, "{} is missing", key);
  const bool list = field->is_array() && !field->empty();
  if (single) *single = field->is_string() || (list && field->front().is_number());
  std::vector<std::vector<int32_t>> prompts;
  if (list && field->front().is_number()) {
    prompts.push_back(ToIds(*field, key));
  } else if (list && field->front().is_array()) {
    for (const Json& ids : *field) prompts.push_back(ToIds(ids, key));
  } else {
    const bool special = f.Bool("add_special_tokens", true);
    const std::vector<std::string> texts = f.Strings(key);
    service.front.CheckCapacity(texts.size());
    for (const std::string& text : texts) {
      if (text.empty()) throw InvalidField(key, "{} has an empty text", key);
      prompts.push_back(Encode(service, f, text, special));
    }
  }
  if (prompts.empty()) throw InvalidField(key, "{} is an empty list", key);
  return prompts;
}

void AddPrompts(const Service& service, const Fields& f, const char* key,
                std::vector<std::vector<int32_t>> prompts, Batch* batch, bool pooled) {
  service.front.CheckCapacity(batch->specs.size() + prompts.size());
  ClientNames names = openai::ClientNamesOf(f, key, "label_token_ids");
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationSpec spec;
    spec.pooled = pooled;
    spec.sampling.max_new_tokens = pooled ? 0 : 1;
    spec.group = ParseDataParallelRank(f);
    spec.priority = ParsePriority(service.args, f);
    spec.cache_salt = ParseCacheSalt(f, i, prompts.size());
    ParseRequestId(f, f.Has("rid") ? "rid" : "request_id", i, prompts.size(), &spec);
    openai::TruncatePrompt(service, f, spec, prompts[i]);
    spec.input_ids = std::move(prompts[i]);
    AddCopies(service.front, std::move(spec), 1, names, batch->specs);
  }
}

void Run(Service& service, Batch batch, const http::Responder& responder, Respond respond) {
  const auto shared = std::make_shared<const Batch>(std::move(batch));
  PendingResponse::Events events;
  events.on_end = [shared, responder, &service,
                   respond = std::move(respond)](const std::vector<Accumulated>& all) {
    for (const Accumulated& a : all) {
      if (a.last.finish == FinishReason::kAbort)
        return responder.SendError(http::StatusOf(ErrorKind::kUnavailable),
                                   "the request was aborted");
      if (a.last.finish == FinishReason::kError)
        return responder.SendError(http::StatusOf(a.last.error_kind),
                                   RedactPaths(service, a.last.error));
    }
    responder.Send(200, http::kJson, respond(*shared, all));
  };
  PendingResponse::Start(service, shared->specs, /*stream=*/false, responder, std::move(events));
}

Json Usage(const std::vector<Accumulated>& all) {
  int64_t prompt = 0, cached = 0;
  for (const Accumulated& a : all) {
    prompt += a.last.prompt_tokens;
    cached += a.last.cached_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", 0},
          {"total_tokens", prompt},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

}  // namespace switchyard::pooling
