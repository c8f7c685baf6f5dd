#include "server/openai/common.h"

#include <chrono>
#include <random>

#include "server/api/data_parallel_rank.h"

namespace switchyard::openai {

void CheckModel(const Service& service, const Fields& f) {
  const std::string name = f.String("model", service.model.name);
  if (name != service.model.name && name != "default") {
    throw Invalid("the model {} does not exist here; this server has {}", name, service.model.name);
  }
}

void ParseSampling(const Service& service, const Fields& f, int32_t max_new_tokens,
                   GenerationSpec* spec) {
  SamplingParams& s = spec->sampling;
  s = service.model.sampling_defaults;
  s.max_new_tokens = f.Int32("max_completion_tokens", f.Int32("max_tokens", max_new_tokens));
  s.min_new_tokens = f.Int32("min_tokens", 0);
  s.temperature = static_cast<float>(f.Number("temperature", s.temperature));
  s.top_p = static_cast<float>(f.Number("top_p", s.top_p));
  s.top_k = f.Int32("top_k", s.top_k);
  s.min_p = static_cast<float>(f.Number("min_p", s.min_p));
  s.frequency_penalty = static_cast<float>(f.Number("frequency_penalty", 0));
  s.presence_penalty = static_cast<float>(f.Number("presence_penalty", 0));
  s.repetition_penalty = static_cast<float>(f.Number("repetition_penalty", s.repetition_penalty));
  s.seed = f.Seed("seed");
  s.ignore_eos = f.Bool("ignore_eos", false);
  s.stop_token_ids = f.Ids("stop_token_ids");
  s.logit_bias = f.LogitBias("logit_bias");
  spec->stop = f.Strings("stop");
  spec->keep_stop = f.Bool("no_stop_trim", false);
  spec->skip_special_tokens = f.Bool("skip_special_tokens", true);
  spec->name = f.String("rid", "");
  spec->group = ParseDataParallelRank(f);
  if (const Json* format = f.Find("response_format")) {
    const std::string type = format->is_object() ? Fields(*format).String("type", "text") : "";
    if (type != "text") throw Invalid("response_format: this server has only type text");
  }
  if (f.Bool("return_routed_experts", false))
    throw Invalid("return_routed_experts is answered by POST /generate alone");
  for (const char* key : {"best_of", "stop_regex", "lora_path"}) f.Refuse(key, "is not supported");
  for (const char* key : {"json_schema", "regex", "ebnf"}) {
    f.Refuse(key, "asks for constrained output, which this server does not have");
  }
}

Delivery ParseDelivery(const Fields& f) {
  Delivery d{.stream = f.Bool("stream", false), .n = static_cast<int32_t>(f.Int("n", 1, 1, 1024))};
  if (const Json* options = f.Find("stream_options")) {
    if (!options->is_object()) throw Invalid("stream_options is not an object");
    if (!d.stream) throw Invalid("stream_options is only allowed with stream");
    d.include_usage = Fields(*options, "stream_options.").Bool("include_usage", false);
  }
  return d;
}

static Json FinishReasonOf(const GenerationEvent& event) {
  switch (event.finish) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
    case FinishReason::kError:
      return "abort";
  }
  return nullptr;
}

void AddEnding(const GenerationEvent& event, Json& choice) {
  choice["finish_reason"] = FinishReasonOf(event);
  if (const auto* stop = std::get_if<std::string>(&event.matched)) choice["matched_stop"] = *stop;
  if (const auto* stop = std::get_if<int32_t>(&event.matched)) choice["matched_stop"] = *stop;
}

Json Usage(const std::vector<Accumulated>& all, int32_t n) {
  int64_t prompt = 0, completion = 0, cached = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    completion += all[i].last.completion_tokens;
    if (i % n != 0) continue;
    prompt += all[i].last.prompt_tokens;
    cached += all[i].last.cached_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

std::string NewId(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}-{:016x}{:016x}", prefix, random(), random());
}

int64_t Now() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace switchyard::openai
