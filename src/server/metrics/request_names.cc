#include <span>

#include "server/metrics/names.h"
#include "server/metrics/page.h"

namespace switchyard::metrics {
namespace {

using R = RequestMetrics;

struct HistogramName {
  const char* name;
  Histogram R::*values;
  const char* help;
  std::span<const double> bounds = {};  // empty: all bounds of the histogram
};

constexpr HistogramName kOwn[] = {
    {"switchyard_time_to_first_token_seconds", &R::first_token,
     "Time from submission to the first token"},
    {"switchyard_inter_token_latency_seconds", &R::inter_token, "Time between two tokens"},
    {"switchyard_time_per_output_token_seconds", &R::per_output_token,
     "Mean time between the tokens of a generation"},
    {"switchyard_request_latency_seconds", &R::latency,
     "Time from submission to the end of a generation"},
    {"switchyard_queue_time_seconds", &R::queue, "Time in the scheduler's queue"},
    {"switchyard_prefill_time_seconds", &R::prefill, "Time from admission to the first token"},
    {"switchyard_decode_time_seconds", &R::decode, "Time from the first to the last token"},
    {"switchyard_request_prompt_tokens", &R::request_prompt_tokens,
     "Prompt tokens of a generation"},
    {"switchyard_request_generation_tokens", &R::request_tokens, "Tokens of a generation"},
};

constexpr HistogramName kSglang[] = {
    {"sglang:time_to_first_token_seconds", &R::first_token,
     "Time from submission to the first token", kSglangFirstToken},
    {"sglang:inter_token_latency_seconds", &R::inter_token, "Time between two tokens",
     kSglangInterToken},
    {"sglang:e2e_request_latency_seconds", &R::latency,
     "Time from submission to the end of a generation", kSglangLatency},
    {"sglang:queue_time_seconds", &R::queue, "Time in the scheduler's queue", kSglangQueue},
    {"sglang:prompt_tokens_histogram", &R::request_prompt_tokens, "Prompt tokens of a generation",
     kSglangTokens},
    {"sglang:generation_tokens_histogram", &R::request_tokens, "Tokens of a generation",
     kSglangTokens},
};

constexpr HistogramName kVllm[] = {
    {"vllm:time_to_first_token_seconds", &R::first_token, "Time from submission to the first token",
     kVllmFirstToken},
    {"vllm:inter_token_latency_seconds", &R::inter_token, "Time between two tokens",
     kVllmInterToken},
    {"vllm:time_per_output_token_seconds", &R::inter_token,
     "Former name of vllm:inter_token_latency_seconds", kVllmInterToken},
    {"vllm:request_time_per_output_token_seconds", &R::per_output_token,
     "Mean time between the tokens of a generation", kVllmInterToken},
    {"vllm:e2e_request_latency_seconds", &R::latency,
     "Time from submission to the end of a generation", kVllmLatency},
    {"vllm:request_queue_time_seconds", &R::queue, "Time in the scheduler's queue", kVllmLatency},
    {"vllm:request_inference_time_seconds", &R::inference,
     "Time from admission to the end of a generation", kVllmLatency},
    {"vllm:request_prefill_time_seconds", &R::prefill, "Time from admission to the first token",
     kVllmLatency},
    {"vllm:request_decode_time_seconds", &R::decode, "Time from the first to the last token",
     kVllmLatency},
    {"vllm:request_params_n", &R::copies, "Generations per prompt", kVllmCopies},
};

// Histograms of token counts, whose bounds depend on the context length.
constexpr HistogramName kVllmTokens[] = {
    {"vllm:request_prompt_tokens", &R::request_prompt_tokens, "Prompt tokens of a generation"},
    {"vllm:request_generation_tokens", &R::request_tokens, "Tokens of a generation"},
    {"vllm:request_max_num_generation_tokens", &R::most_tokens,
     "Tokens of the longest generation of a prompt"},
    {"vllm:request_params_max_tokens", &R::max_new_tokens,
     "Token limit of a generation: max_tokens, or the space that the prompt leaves in the context "
     "if that is less"},
};

void AddAll(const R& requests, std::span<const HistogramName> names, const Labels& labels,
            Page* page) {
  for (const HistogramName& h : names) {
    const Histogram& values = requests.*h.values;
    page->Histogram(h.name, h.help, labels,
                    h.bounds.empty() ? values.Read() : values.Read(h.bounds));
  }
}

void AddOwnCounters(const R& requests, Clock::time_point now, Page* page) {
  const auto count = [&](const char* name, const char* help, uint64_t value,
                         const Labels& labels = {}) {
    page->Counter(name, help, labels, static_cast<double>(value));
  };
  count("switchyard_requests_total", "Generations submitted", requests.submitted());
  for (int i = 0; i < kNumEnds; ++i) {
    const auto end = static_cast<End>(i);
    count("switchyard_requests_finished_total", "Generations that have ended, by reason",
          requests.ended(end), {{"reason", Name(end)}});
  }
  count("switchyard_prompt_tokens_total", "Prompt tokens of generations with a first token",
        requests.prompt_tokens());
  count("switchyard_generation_tokens_total", "Tokens generated, as responses count them",
        requests.generation_tokens());
  page->Gauge("switchyard_cache_hit_rate",
              "Cached fraction of the prompt tokens of the last 1000 generations", {},
              requests.cache_hit_rate());
  page->Gauge("switchyard_generation_tokens_per_second",
              "Tokens generated per second over the last 10 seconds", {},
              requests.tokens_per_second(now));
}

void AddSglangCounters(const R& requests, const Labels& model, Clock::time_point now, Page* page) {
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    page->Counter(name, help, model, static_cast<double>(value));
  };
  uint64_t ended = 0;
  for (int i = 0; i < kNumEnds; ++i) ended += requests.ended(static_cast<End>(i));
  count("sglang:prompt_tokens_total", "Prompt tokens of generations with a first token",
        requests.prompt_tokens());
  count("sglang:generation_tokens_total", "Tokens generated", requests.generation_tokens());
  count("sglang:cached_tokens_total", "Prompt tokens found in the cache", requests.cached_tokens());
  count("sglang:num_requests_total", "Generations that have ended", ended);
  count("sglang:num_aborted_requests_total", "Generations aborted, also after a timeout",
        requests.ended(End::kAbort) + requests.ended(End::kTimeout));
  page->Gauge("sglang:cache_hit_rate",
              "Cached fraction of the prompt tokens of the last 1000 generations", model,
              requests.cache_hit_rate());
  page->Gauge("sglang:gen_throughput", "Tokens generated per second over the last 10 seconds",
              model, requests.tokens_per_second(now));
}

void AddVllmCounters(const R& requests, const Labels& model, Page* page) {
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    page->Counter(name, help, model, static_cast<double>(value));
  };
  count("vllm:prompt_tokens_total", "Prompt tokens of generations with a first token",
        requests.prompt_tokens());
  count("vllm:generation_tokens_total", "Tokens generated", requests.generation_tokens());
  count("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache",
        requests.prompt_tokens());
  count("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache",
        requests.cached_tokens());
  const auto ended = [&](const char* reason, uint64_t value) {
    Labels labels = model;
    labels["finished_reason"] = reason;
    page->Counter("vllm:request_success_total", "Generations that have ended, by reason", labels,
                  static_cast<double>(value));
  };
  ended("stop", requests.ended(End::kStop));
  ended("length", requests.ended(End::kLength));
  ended("abort", requests.ended(End::kAbort) + requests.ended(End::kTimeout));
  ended("error", requests.ended(End::kError));
}

}  // namespace

void AddRequests(const RequestMetrics& requests, const std::string& model, Clock::time_point now,
                 Page* page) {
  const Labels labels = {{"model_name", model}};
  AddOwnCounters(requests, now, page);
  AddAll(requests, kOwn, {}, page);
  AddSglangCounters(requests, labels, now, page);
  AddAll(requests, kSglang, labels, page);
  AddVllmCounters(requests, labels, page);
  AddAll(requests, kVllm, labels, page);
  for (const HistogramName& h : kVllmTokens)
    page->Histogram(h.name, h.help, labels, (requests.*h.values).Read(requests.token_bounds));
}

}  // namespace switchyard::metrics
