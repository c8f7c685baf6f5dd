#include <algorithm>
#include <optional>
#include <utility>

#include "server/api/grammar_fields.h"
#include "server/api/request_fields.h"
#include "server/native/native.h"

namespace switchyard::native {
namespace {

constexpr int64_t kMaxCopies = 4096;  // maximum n of one prompt

void ParseSampling(const Service& service, const Fields& f, GenerationSpec* spec) {
  spec->sampling = service.model.sampling_defaults;
  SamplingParams& s = spec->sampling;
  s.max_new_tokens = f.Int32("max_new_tokens", s.max_new_tokens);
  s.min_new_tokens = f.Int32("min_new_tokens", s.min_new_tokens);
  s.seed = f.Seed("sampling_seed");
  ParseSamplingFields(*service.model.tokenizer, f, spec);
  ParseGrammar(service, f, spec);
}

std::vector<std::vector<int32_t>> ParsePrompts(const Service& service, const Fields& f,
                                               bool* single) {
  std::vector<std::vector<int32_t>> prompts;
  const Json* text = f.Find("text");
  const Json* ids = f.Find("input_ids");
  if (!text == !ids) throw InvalidField("text", "want exactly one of text and input_ids");
  if (text) {
    *single = text->is_string();
    const std::vector<std::string> texts = f.Strings("text");
    service.front.CheckCapacity(texts.size());
    const auto limit = static_cast<size_t>(service.front.longest());
    for (const std::string& t : texts)
      prompts.push_back(service.model.tokenizer->Encode(t, true, limit));
  } else {
    *single = !ids->is_array() || ids->empty() || !ids->front().is_array();
    if (*single) {
      prompts.push_back(ToIds(*ids, "input_ids"));
    } else {
      for (const Json& list : *ids) prompts.push_back(ToIds(list, "input_ids"));
    }
  }
  const char* key = text ? "text" : "input_ids";
  if (prompts.empty()) throw InvalidField(key, "{} is an empty list", key);
  return prompts;
}

// Parses token_ids_logprob: one list of ids for all prompts, or one list per prompt.
std::vector<int32_t> ParseAskedIds(const Fields& f, size_t i, size_t prompts) {
  const Json* field = f.Find("token_ids_logprob");
  if (!field) return {};
  const bool lists =
      field->is_array() && std::any_of(field->begin(), field->end(),
                                       [](const Json& v) { return v.is_array() || v.is_null(); });
  const Json* own = lists ? ValueForPrompt(f, "token_ids_logprob", i, prompts) : field;
  return own ? ToIds(*own, "token_ids_logprob") : std::vector<int32_t>();
}

LogprobParams ParseLogprobs(const Fields& body, size_t i, size_t prompts) {
  Json own = Json::object();
  for (const char* key : {"return_logprob", "logprob_start_len", "top_logprobs_num"})
    if (const Json* v = ValueForPrompt(body, key, i, prompts)) own[key] = *v;
  const Fields f(own);
  return {.enabled = f.Bool("return_logprob", false),
          .start = static_cast<int32_t>(f.Int("logprob_start_len", -1, -1, INT32_MAX)),
          .top = static_cast<int32_t>(f.Int("top_logprobs_num", 0, 0, 1024)),
          .token_ids = ParseAskedIds(body, i, prompts)};
}

RoutedExpertsParams ParseRoutedExperts(const Fields& f) {
  return {.enabled = f.Bool("return_routed_experts", false),
          .start = static_cast<int32_t>(f.Int("routed_experts_start_len", 0, 0, INT32_MAX))};
}

// Parses session_params, and puts the tokens that the request continues before its prompt.
std::optional<SessionParams> ParseSession(const Service& service, const Fields& f, bool single,
                                          std::vector<std::vector<int32_t>>* prompts) {
  const Json* const object = f.Find("session_params");
  if (!object || (object->is_object() && object->empty())) return std::nullopt;
  if (!object->is_object()) throw InvalidField("session_params", "session_params is not an object");
  const Fields s(*object, "session_params.");
  CheckFields(s, RequestKind::kSessionParams, service.unknown_fields);
  if (!single)
    throw InvalidField("session_params", "session_params is only supported with a single prompt");
  SessionParams params{.id = s.String("id", ""),
                       .offset = s.Int("offset", 0, 0, INT32_MAX),
                       .replace = s.Bool("replace", false),
                       .drop_previous_output = s.Bool("drop_previous_output", false)};
  if (params.id.empty()) throw InvalidField("session_params.id", "session_params.id is missing");
  if (s.Has("rid")) params.rid = s.String("rid", "");
  std::vector<int32_t> tokens = service.sessions.Context(params);
  if (tokens.empty()) return params;
  std::vector<int32_t>& added = prompts->front();
  const std::optional<int32_t> bos = service.model.config.bos_token_id;
  const bool begins = bos && !added.empty() && added.front() == *bos;
  tokens.insert(tokens.end(), added.begin() + (begins ? 1 : 0), added.end());
  added = std::move(tokens);
  return params;
}

// Fields of sampling_params get the prefix "sampling_params.". Most other fields have the name of
// the engine's parameter.
ClientNames ClientNamesOf(const Fields& f) {
  ClientNames names = {{"prompt", f.Has("text") ? "text" : "input_ids"},
                       {"top_logprobs", "top_logprobs_num"}};
  if (f.Has("routed_dp_rank")) names["data_parallel_rank"] = "routed_dp_rank";
  for (const KnownField& field : KnownFields(RequestKind::kSamplingParams))
    names[field.name] = std::string("sampling_params.") + field.name;
  return names;
}

}  // namespace

GenerateBody ParseGenerateBody(const Service& service, const Json& body) {
  const Fields f(body);
  CheckFields(f, RequestKind::kGenerate, service.unknown_fields);
  GenerateBody g{.stream = f.Bool("stream", false),
                 .text_in_logprobs = f.Bool("return_text_in_logprobs", false),
                 .prompt_ids = f.Bool("return_prompt_token_ids", false),
                 .segments = service.args.stream_output};
  auto prompts = ParsePrompts(service, f, &g.single);
  g.session = ParseSession(service, f, g.single, &prompts);
  const ClientNames names = ClientNamesOf(f);
  static const Json kNone = Json::object();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Json* own = ValueForPrompt(f, "sampling_params", i, prompts.size());
    if (own && !own->is_object())
      throw InvalidField("sampling_params", "sampling_params is not an object");
    const Fields s(own ? *own : kNone, "sampling_params.");
    CheckFields(s, RequestKind::kSamplingParams, service.unknown_fields);
    GenerationSpec spec;
    ParseSampling(service, s, &spec);
    spec.input_ids = std::move(prompts[i]);
    spec.logprob = ParseLogprobs(f, i, prompts.size());
    spec.routed_experts = ParseRoutedExperts(f);
    spec.group = ParseDataParallelRank(f);
    spec.kv = ParseBootstrap(service.args, f, i, prompts.size());
    spec.priority = ParsePriority(service.args, f);
    spec.cache_salt = ParseCacheSalt(f, i, prompts.size());
    const auto interval =
        static_cast<int32_t>(s.Int("stream_interval", service.args.stream_interval, 1, INT32_MAX));
    if (g.stream) spec.stream_interval = interval;
    ParseRequestId(f, "rid", i, prompts.size(), &spec);
    const int64_t n = s.Int("n", 1, 1, kMaxCopies);
    if (n > 1) g.single = false;
    AddCopies(service.front, std::move(spec), n, names, g.specs);
  }
  if (g.session && g.specs.size() != 1)
    throw InvalidField("session_params", "session_params is only supported with n 1");
  return g;
}

}  // namespace switchyard::native
