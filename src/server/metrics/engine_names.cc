#include <utility>

#include "server/metrics/names.h"

namespace switchyard::metrics {
namespace {

void AddOwn(const EngineStats& s, const std::string& index, Page* page) {
  const Labels group = {{"group", index}};
  const auto pages = [&](const char* state, int64_t n) {
    page->Gauge("switchyard_kv_pages", "Pages of the KV cache by state",
                {{"group", index}, {"state", state}}, static_cast<double>(n));
  };
  page->Gauge("switchyard_running_requests", "Requests in the running set", group, s.running);
  page->Gauge("switchyard_waiting_requests", "Requests in the queue", group, s.waiting);
  pages("free", s.free_pages);
  pages("cached", s.cached_pages);
  pages("used", s.total_pages - s.free_pages - s.cached_pages);
  const auto count = [&](const char* name, const char* help, int64_t n) {
    page->Counter(name, help, group, static_cast<double>(n));
  };
  count("switchyard_steps_total", "Steps with a batch of this group", s.steps);
  count("switchyard_prefill_tokens_total", "Prompt tokens computed", s.prefill_tokens);
  count("switchyard_cached_prompt_tokens_total", "Prompt tokens found in the radix cache",
        s.cached_prompt_tokens);
  count("switchyard_decode_tokens_total", "Tokens generated", s.decode_tokens);
  count("switchyard_retractions_total", "Requests retracted to free KV pages", s.retractions);
}

double Ratio(int64_t count, int64_t of) {
  return of == 0 ? 0 : static_cast<double>(count) / static_cast<double>(of);
}

// Adds the counters of speculative decoding, if there were drafts.
void AddDrafts(const EngineStats& s, const std::string& index, const Labels& sglang,
               const Labels& vllm, Page* page) {
  if (s.verify_steps == 0) return;
  const Labels group = {{"group", index}};
  const auto count = [&](const char* name, const char* help, const Labels& labels, int64_t n) {
    page->Counter(name, help, labels, static_cast<double>(n));
  };
  count("switchyard_verify_steps_total", "Decode steps of a request with drafts", group,
        s.verify_steps);
  count("switchyard_draft_tokens_total", "Draft tokens computed", group, s.drafted_tokens);
  count("switchyard_accepted_draft_tokens_total", "Draft tokens equal to the sampled tokens", group,
        s.accepted_tokens);
  for (size_t i = 0; i < s.verified_by_position.size(); ++i) {
    const Labels place = {{"group", index}, {"position", std::to_string(i)}};
    count("switchyard_verified_drafts_by_position_total",
          "Draft tokens whose preceding drafts were all accepted, by position", place,
          s.verified_by_position[i]);
  }
  for (size_t i = 0; i < s.accepted_by_position.size(); ++i) {
    Labels place = {{"group", index}, {"position", std::to_string(i)}};
    count("switchyard_accepted_drafts_by_position_total",
          "Draft tokens equal to the sampled tokens, by position", place,
          s.accepted_by_position[i]);
  }
  page->Gauge("sglang:spec_accept_length", "Tokens of a request in a decode step with drafts",
              sglang, 1 + Ratio(s.accepted_tokens, s.verify_steps));
  page->Gauge("sglang:spec_accept_rate", "Accepted fraction of the draft tokens", sglang,
              Ratio(s.accepted_tokens, s.drafted_tokens));
  count("vllm:spec_decode_num_drafts_total", "Decode steps of a request with drafts", vllm,
        s.verify_steps);
  count("vllm:spec_decode_num_draft_tokens_total", "Draft tokens computed", vllm, s.drafted_tokens);
  count("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens equal to the sampled tokens",
        vllm, s.accepted_tokens);
}

// Adds the counters of jump-forward decoding, if there were drafts.
void AddForced(const EngineStats& s, const std::string& index, Page* page) {
  if (s.forced_steps == 0) return;
  const Labels group = {{"group", index}};
  const auto count = [&](const char* name, const char* help, int64_t n) {
    page->Counter(name, help, group, static_cast<double>(n));
  };
  count("switchyard_jump_forward_steps_total",
        "Decode steps of requests that have drafts forced by their grammar", s.forced_steps);
  count("switchyard_jump_forward_draft_tokens_total", "Draft tokens computed that a grammar forces",
        s.forced_tokens);
  count("switchyard_accepted_jump_forward_draft_tokens_total",
        "Draft tokens that a grammar forces and that equal the sampled tokens",
        s.accepted_forced_tokens);
}

// The fraction of pages that requests use. Pages that only cache a prefix do not count.
double Usage(const EngineStats& s) {
  if (s.total_pages == 0) return 0;
  const int64_t used = s.total_pages - s.free_pages - s.cached_pages;
  return static_cast<double>(used) / static_cast<double>(s.total_pages);
}

void AddSglang(const EngineStats& s, const Labels& labels, Page* page) {
  const int64_t used = s.total_pages - s.free_pages - s.cached_pages;
  page->Gauge("sglang:num_running_reqs", "Requests in the running set", labels, s.running);
  page->Gauge("sglang:num_queue_reqs", "Requests in the queue", labels, s.waiting);
  page->Gauge("sglang:num_used_tokens", "Capacity in tokens of the KV pages that requests use",
              labels, static_cast<double>(used * s.page_size));
  page->Gauge("sglang:token_usage", "Fraction of the KV pages that requests use", labels, Usage(s));
}

void AddVllm(const EngineStats& s, const Labels& labels, Page* page) {
  page->Gauge("vllm:num_requests_running", "Requests in the running set", labels, s.running);
  page->Gauge("vllm:num_requests_waiting", "Requests in the queue", labels, s.waiting);
  page->Gauge("vllm:kv_cache_usage_perc", "Fraction of the KV pages that requests use", labels,
              Usage(s));
  page->Counter("vllm:num_preemptions_total", "Requests retracted to free KV pages", labels,
                static_cast<double>(s.retractions));
}

}  // namespace

void AddGroups(const std::vector<EngineStats>& groups, const std::string& model, Page* page) {
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string index = std::to_string(g);
    AddOwn(groups[g], index, page);
    Labels sglang = {{"model_name", model}};
    // As in SGLang, the label exists only with DP.
    if (groups.size() > 1) sglang["dp_rank"] = index;
    AddSglang(groups[g], sglang, page);
    const Labels vllm = {{"model_name", model}, {"engine", index}};
    AddVllm(groups[g], vllm, page);
    AddDrafts(groups[g], index, sglang, vllm, page);
    AddForced(groups[g], index, page);
  }
}

void AddRanks(const RankHistory& ranks, Page* page) {
  page->Gauge("switchyard_epoch", "Number of starts of the ranks", {},
              static_cast<double>(ranks.epoch));
  page->Counter("switchyard_rank_deaths_total", "Unplanned ends of ranks", {},
                static_cast<double>(ranks.deaths));
  page->Counter("switchyard_rank_changes_total",
                "Planned restarts of ranks and changes of the layout", {},
                static_cast<double>(ranks.changes));
  page->Counter("switchyard_pause_seconds_total",
                "Seconds without serving ranks, since the first start", {}, ranks.pause_seconds);
}

void AddResponses(const http::ResponseCounts& responses, size_t open_requests, Page* page) {
  page->Gauge("switchyard_http_open_requests", "HTTP requests without a complete response", {},
              static_cast<double>(open_requests));
  for (const auto& [kind, count] : responses.Read()) {
    const std::string status = std::to_string(kind.status);
    page->Counter("switchyard_http_responses_total", "HTTP responses by route, method and status",
                  {{"route", kind.route}, {"method", kind.method}, {"status", status}},
                  static_cast<double>(count));
    if (count == 0) continue;  // SGLang omits series of count 0; they would double the size
    page->Counter("sglang:http_responses_total", "HTTP responses by route, method and status",
                  {{"endpoint", kind.route}, {"method", kind.method}, {"status_code", status}},
                  static_cast<double>(count));
  }
}

}  // namespace switchyard::metrics
