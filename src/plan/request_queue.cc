#include "plan/request_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace switchyard::plan {
namespace {

// A token of a made-up text. Texts of different numbers have different tokens almost everywhere.
int32_t TokenOf(uint64_t text, int64_t position) {
  uint64_t x = text * 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(position);
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ULL;
  return static_cast<int32_t>(x >> 33);
}

constexpr uint64_t kBlockTexts = uint64_t{1} << 40;  // numbers of texts of Arrival::blocks

constexpr int64_t kStepsWithWaiting = 8;

}  // namespace

RequestQueue::RequestQueue(std::span<const Arrival> arrivals, const QueueLimits& limits,
                           Latencies* latencies)
    : arrivals_(arrivals),
      makes_tokens_(limits.reuses_prefixes),
      latencies_(latencies),
      cache_(limits.pages, limits.page_size, limits.reuses_prefixes),
      scheduler_({.max_running_requests = std::max(limits.running, limits.most_running),
                  .chunk_rows = limits.chunk,
                  .whole_prompts = limits.whole_prompts,
                  .max_logit_rows = limits.logit_rows,
                  .chunk_keys = limits.chunk_keys,
                  .passes = limits.passes,
                  .max_micro_batch = limits.micro_batch},
                 cache_) {
  scheduler_.Limit(limits.running, 0);
}

std::vector<int32_t> RequestQueue::TokensOf(size_t request, int64_t count) {
  std::vector<int32_t> tokens;
  if (!spare_.empty()) {
    tokens = std::move(spare_.back());
    spare_.pop_back();
  }
  tokens.resize(static_cast<size_t>(count));
  if (!makes_tokens_) return tokens;
  const std::vector<uint32_t>& blocks = arrivals_[request].blocks;
  const int64_t prompt = arrivals_[request].input;
  for (int64_t i = 0; i < count; ++i) {
    const auto block = static_cast<size_t>(i / Arrival::kBlockTokens);
    const bool shared = i < prompt && block < blocks.size();
    tokens[i] = shared ? TokenOf(kBlockTexts + blocks[block], i % Arrival::kBlockTokens)
                       : TokenOf(request, i);
  }
  return tokens;
}

void RequestQueue::Add(const OpenRequest& request) {
  const Arrival& a = arrivals_[request.index];
  EngineRequest made;
  made.id = request.index;
  made.input_ids = TokensOf(request.index, a.input + request.output);
  made.output_ids.assign(made.input_ids.begin() + a.input, made.input_ids.end());
  made.input_ids.resize(static_cast<size_t>(a.input));
  made.sampling.max_new_tokens = static_cast<int32_t>(a.output);
  Open& open = open_.emplace_back(std::move(made), request);
  open.self = std::prev(open_.end());
  scheduler_.Enqueue(&open);
}

std::vector<OpenRequest> RequestQueue::TakeAll(bool keeps_cache) {
  std::vector<OpenRequest> all;
  plan_ = {};
  for (Open& open : open_) {
    OpenRequest state = open.state;
    state.output = open.output_length();
    state.redo = std::max(state.redo, open.computed);
    all.push_back(state);
    scheduler_.Remove(&open, /*discard=*/!keeps_cache);
  }
  open_.clear();
  if (!keeps_cache) cache_.DropPrefixes();
  std::ranges::sort(all, {}, &OpenRequest::index);
  return all;
}

GroupRows RequestQueue::Plan(int64_t mixed_rows, bool others_decode) {
  scheduler_.LimitPrefill(mixed_rows);
  scheduler_.SetOthersDecode(others_decode);
  plan_ = scheduler_.Plan();
  GroupRows rows;
  int64_t keys = 0;
  for (const auto& [sequence, count] : plan_) {
    if (sequence->decoding()) {
      ++rows.decode;
      rows.decode_keys += sequence->length();
    } else {
      rows.prompt += count;
      keys += count * (sequence->computed + count / 2);
    }
  }
  if (rows.prompt > 0) rows.prompt_keys = keys / rows.prompt;
  return rows;
}

int64_t RequestQueue::EqualSteps() const {
  if (plan_.empty()) return std::numeric_limits<int64_t>::max();
  int64_t steps = std::numeric_limits<int64_t>::max();
  for (const auto& [sequence, count] : plan_) {
    const auto& open = static_cast<const Open&>(*sequence);
    steps = std::min(steps, arrivals_[open.state.index].output - open.output_length());
  }
  // Each sequence may need a page that is begun, and pages for all further tokens.
  const int64_t pages = cache_.available() / std::ssize(plan_) - 1;
  steps = std::min(steps, pages * cache_.page_size());
  // Admission depends on the number of steps, through the estimate of output tokens.
  if (scheduler_.waiting() > 0) steps = std::min(steps, kStepsWithWaiting);
  return std::max<int64_t>(1, steps);
}

void RequestQueue::Advance(int64_t steps, double now) {
  for (const auto& [sequence, count] : plan_) {
    auto& open = static_cast<Open&>(*sequence);
    redone_rows_ +=
        std::max<int64_t>(0, std::min(open.computed + count, open.state.redo) - open.computed);
    open.computed += count + steps - 1;
    open.settled = open.computed;
    if (open.pending() > 0) continue;
    if (steps > 1) {
      CHECK(cache_.Grow(open.computed, open.cache));  // EqualSteps
    }
    const Arrival& a = arrivals_[open.state.index];
    if (open.output_length() == 0) {
      open.state.first = now;
      latencies_->AddFirst(a, now);
    }
    if (makes_tokens_) {
      for (int64_t i = 0; i < steps; ++i)
        open.tokens.push_back(TokenOf(open.state.index, open.length()));
    } else {
      open.tokens.resize(open.tokens.size() + static_cast<size_t>(steps));
    }
    if (open.output_length() == 1) cache_.Publish(open.settled_tokens(), open.cache);
    if (open.output_length() < a.output) continue;
    latencies_->AddLast(a, open.state.first, now);
    scheduler_.Remove(&open);
    spare_.push_back(std::move(open.tokens));
    open_.erase(open.self);
  }
  plan_ = {};
}

void RequestQueue::Begin() {
  std::vector<Part>& pass = in_flight_.emplace_back();
  for (const auto& [sequence, count] : plan_) {
    auto& open = static_cast<Open&>(*sequence);
    Part part{.open = &open,
              .end = open.computed + count,
              .admission = open.admissions,
              .decoding = open.decoding(),
              .samples = count >= open.pending()};
    open.computed = part.end;
    if (part.samples) {
      const Arrival& a = arrivals_[open.state.index];
      open.tokens.push_back(makes_tokens_ ? TokenOf(open.state.index, open.length()) : 0);
      ++open.unknown;
      open.complete = open.output_length() >= a.output;
    }
    pass.push_back(part);
  }
  plan_ = {};
}

// As RankEngine::Impl::ApplyResult does. No part refers to a request that has ended: the pass of
// its last token is the last one that has rows of it.
void RequestQueue::End(double now) {
  CHECK(!in_flight_.empty());
  const std::vector<Part> pass = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const Part& part : pass) {
    Open& open = *part.open;
    if (open.admissions != part.admission) {
      CHECK(!part.samples);  // a token in flight prevents the admission
      continue;
    }
    const bool kept = open.computed >= part.end;  // not retracted
    if (kept) open.settled = part.end;
    if (!part.samples) continue;
    open.unknown = 0;
    const Arrival& a = arrivals_[open.state.index];
    if (open.output_length() == 1) {
      open.state.first = now;
      latencies_->AddFirst(a, now);
    }
    if (kept && !part.decoding) cache_.Publish(open.settled_tokens(), open.cache);
    if (open.output_length() < a.output) continue;
    latencies_->AddLast(a, open.state.first, now);
    scheduler_.Remove(&open);
    spare_.push_back(std::move(open.tokens));
    open_.erase(open.self);
  }
}

}  // namespace switchyard::plan
