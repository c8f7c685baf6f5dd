#include "server/openai/common.h"

#include <chrono>
#include <random>

#include "core/hash.h"
#include "server/api/accumulated.h"
#include "server/api/request_fields.h"
#include "server/http/responses.h"

namespace switchyard::openai {
namespace {

// `prefix` ends with a dash or an underscore.
std::string NewId(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:016x}", prefix, random(), random());
}

// A hash of what may affect outputs: version, model, context length, dtype, parallel layout and
// exchange backend.
std::string Fingerprint(const Service& service) {
  const MeshShape mesh = service.sizes().mesh;
  const std::string what =
      fmt::format("{} {} {} {} {} {} {} {}", SWITCHYARD_VERSION, service.model.name,
                  service.plan.context_length, static_cast<int>(service.plan.dtype), mesh.tp,
                  mesh.ep, mesh.dp, service.args.engine.moe.a2a_backend);
  return fmt::format("fp_{:016x}", HashOf(what));
}

void CheckBestOf(const Fields& f, int32_t n) {
  const int64_t best_of = f.Int("best_of", 1, 0, INT32_MAX);
  if (best_of != 1 && best_of != n)
    throw InvalidField(
        "best_of", "best_of is {}, want n: this server returns all generated completions", best_of);
}

void ParseStreamOptions(const Fields& f, Delivery* d) {
  const Json* options = f.Find("stream_options");
  if (!options) return;
  if (!options->is_object())
    throw InvalidField("stream_options", "stream_options is not an object");
  const Fields o(*options, "stream_options.");
  d->include_usage = o.Bool("include_usage", false);
  // If only continuous_usage_stats is set, every event has the usage, as in SGLang. If
  // include_usage is false, no event has it, as in vLLM.
  d->continuous_usage = o.Bool("continuous_usage_stats", false) && o.Bool("include_usage", true);
  if (o.Bool("include_obfuscation", false))
    throw InvalidField("stream_options.include_obfuscation",
                       "stream_options.include_obfuscation is not supported");
  if (!d->stream && (d->include_usage || d->continuous_usage))
    throw InvalidField("stream_options", "stream_options is only allowed with stream");
}

Json FinishReasonOf(const GenerationEvent& event, bool calls) {
  switch (event.finish) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kStop:
      return calls ? "tool_calls" : "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
    case FinishReason::kError:
      return "abort";
  }
  return nullptr;
}

}  // namespace

std::string AnswerId(const Fields& f, const char* prefix) {
  const Json* rid = f.Find("rid");
  if (rid && rid->is_string()) return rid->get<std::string>();
  if (f.Has("request_id")) return prefix + f.String("request_id", "");
  return NewId(prefix);
}

void ParseSampling(const Service& service, const Fields& f, int32_t max_new_tokens,
                   GenerationSpec* spec) {
  spec->sampling = service.model.sampling_defaults;
  SamplingParams& s = spec->sampling;
  s.max_new_tokens = f.Int32("max_completion_tokens", f.Int32("max_tokens", max_new_tokens));
  s.min_new_tokens = f.Int32("min_tokens", 0);
  s.seed = f.Seed("seed");
  ParseSamplingFields(*service.model.tokenizer, f, spec);
  spec->group = ParseDataParallelRank(f);
  spec->kv = ParseBootstrap(service.args, f);
  spec->priority = ParsePriority(service.args, f);
}

void ParsePromptLogprobs(const Service& service, const Fields& f, bool echo, WantedLogprobs* wanted,
                         GenerationSpec* spec) {
  wanted->as_ids = f.Bool("return_tokens_as_token_ids", false);
  const Json* prompt = f.Find("prompt_logprobs");
  if (prompt && *prompt != false) {
    const auto vocab = static_cast<int32_t>(service.model.config.vocab_size);
    if (f.Bool("stream", false))
      throw InvalidField("prompt_logprobs", "prompt_logprobs is not available with stream");
    const auto top = static_cast<int32_t>(f.Int("prompt_logprobs", 0, -1, vocab));
    wanted->prompt_top = top == -1 ? vocab : top;
  }
  LogprobParams& p = spec->logprob;
  p.rank = wanted->prompt_top >= 0;
  p.enabled = wanted->output || p.rank;
  p.top = std::max({wanted->output ? wanted->top : 0, wanted->prompt_top, 0});
  if (p.rank || (wanted->output && echo)) p.start = 0;
}

size_t PromptLimit(const Service& service, const Fields& f) {
  return f.Has("truncate_prompt_tokens") ? Tokenizer::kNoLimit
                                         : static_cast<size_t>(service.front.longest());
}

bool TruncatePrompt(const Service& service, const Fields& f, const GenerationSpec& spec,
                    std::vector<int32_t>& ids) {
  const std::string side = f.String("truncation_side", "left");
  if (side != "left" && side != "right")
    throw InvalidField("truncation_side", "truncation_side is {}, want left or right", side);
  if (!f.Has("truncate_prompt_tokens")) return false;
  const int64_t longest = service.front.longest();
  int64_t most = f.Int("truncate_prompt_tokens", 0, -1, longest);
  if (most == 0)
    throw InvalidField("truncate_prompt_tokens", "truncate_prompt_tokens is 0, want -1, or 1 to {}",
                       longest);
  // −1: the context length minus the requested output.
  const int64_t answer = spec.pooled ? 0 : std::max<int64_t>(spec.sampling.max_new_tokens, 1);
  if (most == -1) most = answer < longest ? longest - answer : longest - 1;
  if (std::ssize(ids) <= most) return false;
  if (side == "left") ids.erase(ids.begin(), ids.end() - most);  // as in vLLM, "left" keeps the end
  ids.resize(most);
  return true;
}

ClientNames ClientNamesOf(const Fields& f, const char* prompt, const char* top) {
  return {
      {"prompt", prompt},
      {"max_new_tokens", f.Has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens"},
      {"min_new_tokens", "min_tokens"},
      {"top_logprobs", top},
      {"data_parallel_rank", f.Has("routed_dp_rank") ? "routed_dp_rank" : "data_parallel_rank"}};
}

Delivery ParseDelivery(const Service& service, const Fields& f, const char* id_prefix,
                       const char* event_object) {
  Delivery d{.id = AnswerId(f, id_prefix),
             .created = Now(),
             .model = service.model.name,
             .fingerprint = Fingerprint(service),
             .event_head = {},
             .stream = f.Bool("stream", false),
             .token_ids = f.Bool("return_token_ids", false),
             .cached_details = f.Bool("return_cached_tokens_details", false),
             .n = static_cast<int32_t>(f.Int("n", 1, 1, 1024))};
  ParseStreamOptions(f, &d);
  CheckBestOf(f, d.n);
  d.event_head = Dump(Envelope(d, event_object, nullptr));
  constexpr std::string_view kAfter = "null}";
  d.event_head.resize(d.event_head.size() - kAfter.size());
  return d;
}

Json Envelope(const Delivery& delivery, const char* object, Json choices) {
  return {{"id", delivery.id},
          {"object", object},
          {"created", delivery.created},
          {"model", delivery.model},
          {"system_fingerprint", delivery.fingerprint},
          {"choices", std::move(choices)}};
}

std::string StreamEvent(const Delivery& delivery, const Json& choices, const Json& usage,
                        const Json& more) {
  std::string text = delivery.event_head + Dump(choices);
  for (const auto& [name, value] : more.items()) text += ',' + Dump(name) + ':' + Dump(value);
  if (delivery.include_usage || delivery.continuous_usage) text += R"(,"usage":)" + Dump(usage);
  return http::SseEvent(text + '}');
}

void AddEnding(const GenerationEvent& event, Json& choice, bool calls) {
  choice["finish_reason"] = FinishReasonOf(event, calls);
  Json& matched = choice["matched_stop"] = nullptr;
  if (const auto* stop = std::get_if<std::string>(&event.matched)) matched = *stop;
  if (const auto* stop = std::get_if<int32_t>(&event.matched)) matched = *stop;
}

static Json UsageJson(int64_t prompt, int64_t completion, int64_t cached, const DraftCounts& drafts,
                      std::optional<int64_t> reasoning) {
  Json usage = {{"prompt_tokens", prompt},
                {"completion_tokens", completion},
                {"total_tokens", prompt + completion},
                {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  if (reasoning) {
    usage["completion_tokens_details"]["reasoning_tokens"] = *reasoning;
    usage["reasoning_tokens"] = *reasoning;  // the same count under SGLang's name
  }
  if (drafts.steps > 0) {  // the names that OpenAI gives to the counts of predicted outputs
    Json& details = usage["completion_tokens_details"];
    details["accepted_prediction_tokens"] = drafts.accepted;
    details["rejected_prediction_tokens"] = drafts.drafted - drafts.accepted;
  }
  return usage;
}

Json Usage(const std::vector<Accumulated>& all, int32_t n, std::optional<int64_t> reasoning) {
  int64_t prompt = 0, completion = 0, cached = 0;
  DraftCounts drafts;
  for (size_t i = 0; i < all.size(); ++i) {
    completion += all[i].last.completion_tokens;
    drafts += all[i].last.drafts;
    if (i % n != 0) continue;
    prompt += all[i].last.prompt_tokens;
    cached += all[i].last.cached_tokens;
  }
  return UsageJson(prompt, completion, cached, drafts, reasoning);
}

Json SglExt(const Delivery& delivery, const std::vector<Accumulated>& all) {
  if (!delivery.cached_details || all.empty()) return nullptr;
  Json details = CachedTokensDetails(all[0].last.cached_tokens);
  if (details.is_null()) return nullptr;
  return {{"cached_tokens_details", std::move(details)}};
}

Json UsageSoFar(const Delivery& delivery, const GenerationEvent& last, bool opening,
                std::optional<int64_t> reasoning) {
  if (!delivery.continuous_usage) return nullptr;
  return UsageJson(last.prompt_tokens, opening ? 0 : last.completion_tokens, last.cached_tokens,
                   last.drafts, reasoning);
}

int64_t Now() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace switchyard::openai
