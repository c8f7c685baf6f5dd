#include "server/api/copies.h"
#include "server/api/data_parallel_rank.h"
#include "server/native/generate.h"

namespace switchyard::native {
namespace {

constexpr int64_t kMostCopies = 4096;  // of one prompt

SamplingParams ParseSampling(const Fields& f, SamplingParams s) {
  s.max_new_tokens = f.Int32("max_new_tokens", s.max_new_tokens);
  s.min_new_tokens = f.Int32("min_new_tokens", s.min_new_tokens);
  s.temperature = static_cast<float>(f.Number("temperature", s.temperature));
  s.top_p = static_cast<float>(f.Number("top_p", s.top_p));
  s.top_k = f.Int32("top_k", s.top_k);
  s.min_p = static_cast<float>(f.Number("min_p", s.min_p));
  s.frequency_penalty = static_cast<float>(f.Number("frequency_penalty", s.frequency_penalty));
  s.presence_penalty = static_cast<float>(f.Number("presence_penalty", s.presence_penalty));
  s.repetition_penalty = static_cast<float>(f.Number("repetition_penalty", s.repetition_penalty));
  s.seed = f.Seed("sampling_seed");
  s.stop_token_ids = f.Ids("stop_token_ids");
  s.ignore_eos = f.Bool("ignore_eos", s.ignore_eos);
  s.logit_bias = f.LogitBias("logit_bias");
  f.Refuse("stop_regex", "is not supported");
  for (const char* key : {"json_schema", "regex", "ebnf", "structural_tag"}) {
    f.Refuse(key, "asks for constrained output, which this server does not have");
  }
  return s;
}

// A field that is one value for all prompts or a list with one for each.
const Json* ForPrompt(const Json* field, size_t i, size_t prompts, const char* name) {
  if (!field || !field->is_array()) return field;
  if (field->size() != prompts)
    throw Invalid("{} has {} entries for {} prompts", name, field->size(), prompts);
  return (*field)[i].is_null() ? nullptr : &(*field)[i];
}

std::vector<std::vector<int32_t>> ParsePrompts(const Service& service, const Fields& f,
                                               bool* single) {
  std::vector<std::vector<int32_t>> prompts;
  const Json* text = f.Find("text");
  const Json* ids = f.Find("input_ids");
  if (!text == !ids) throw Invalid("want one of text and input_ids");
  f.Refuse("input_embeds", "is not supported: send text or input_ids");
  f.Refuse("lora_path", "is not supported");
  f.Refuse("image_data", "is not supported: this server takes text only");
  if (text) {
    *single = text->is_string();
    for (const std::string& t : f.Strings("text"))
      prompts.push_back(service.model.tokenizer->Encode(t, true));
  } else {
    *single = !ids->is_array() || ids->empty() || !ids->front().is_array();
    if (*single) {
      prompts.push_back(ToIds(*ids, "input_ids"));
    } else {
      for (const Json& list : *ids) prompts.push_back(ToIds(list, "input_ids"));
    }
  }
  if (prompts.empty()) throw Invalid("{} is an empty list", text ? "text" : "input_ids");
  return prompts;
}

LogprobParams ParseLogprobs(const Json& body, size_t i, size_t prompts) {
  Json own = Json::object();
  for (const char* key : {"return_logprob", "logprob_start_len", "top_logprobs_num"}) {
    const auto it = body.find(key);
    if (const Json* v = ForPrompt(it == body.end() ? nullptr : &*it, i, prompts, key))
      own[key] = *v;
  }
  const Fields f(own);
  LogprobParams p{.enabled = f.Bool("return_logprob", false)};
  p.start = static_cast<int32_t>(f.Int("logprob_start_len", -1, -1, INT32_MAX));
  p.top = static_cast<int32_t>(f.Int("top_logprobs_num", 0, 0, 1024));
  p.token_ids = Fields(body).Ids("token_ids_logprob");
  return p;
}

RoutedExpertsParams ParseRoutedExperts(const Fields& f) {
  return {.enabled = f.Bool("return_routed_experts", false),
          .start = static_cast<int32_t>(f.Int("routed_experts_start_len", 0, 0, INT32_MAX))};
}

}  // namespace

GenerateBody ParseGenerateBody(const Service& service, const Json& body) {
  const Fields f(body);
  GenerateBody g{.stream = f.Bool("stream", false),
                 .text_in_logprobs = f.Bool("return_text_in_logprobs", false)};
  const auto prompts = ParsePrompts(service, f, &g.single);
  const Json* names = f.Find("rid");
  const Json* sampling = f.Find("sampling_params");
  static const Json kNone = Json::object();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Json* own = ForPrompt(sampling, i, prompts.size(), "sampling_params");
    if (own && !own->is_object()) throw Invalid("sampling_params is not an object");
    const Fields s(own ? *own : kNone, "sampling_params.");
    GenerationSpec spec;
    spec.input_ids = prompts[i];
    spec.sampling = ParseSampling(s, service.model.sampling_defaults);
    spec.logprob = ParseLogprobs(body, i, prompts.size());
    spec.routed_experts = ParseRoutedExperts(f);
    spec.group = ParseDataParallelRank(f);
    spec.stop = s.Strings("stop");
    spec.keep_stop = s.Bool("no_stop_trim", false);
    spec.skip_special_tokens = s.Bool("skip_special_tokens", true);
    if (g.stream) spec.stream_interval = service.args.stream_interval;
    if (const Json* name = ForPrompt(names, i, prompts.size(), "rid")) {
      if (!name->is_string()) throw Invalid("rid is not a string");
      spec.name = name->get<std::string>();
    }
    const int64_t n = s.Int("n", 1, 1, kMostCopies);
    if (n > 1) g.single = false;
    AddCopies(service.front, std::move(spec), n, g.specs);
  }
  return g;
}

}  // namespace switchyard::native
