#include "plan/request_queue.h"

#include <algorithm>

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

std::vector<int32_t> TokensOf(const Arrival& arrival, size_t request) {
  std::vector<int32_t> tokens(static_cast<size_t>(arrival.input));
  for (int64_t i = 0; i < arrival.input; ++i) {
    const auto block = static_cast<size_t>(i / Arrival::kBlockTokens);
    const bool shared = block < arrival.blocks.size();
    tokens[i] = shared ? TokenOf(kBlockTexts + arrival.blocks[block], i % Arrival::kBlockTokens)
                       : TokenOf(request, i);
  }
  return tokens;
}

}  // namespace

void CountedQueue::Admit() {
  while (!waiting_.empty() && running() < limits_.running) {
    const Arrival& a = arrivals_[waiting_.front()];
    if (reserved_ + a.input + a.output > limits_.tokens()) return;
    reserved_ += a.input + a.output;
    prompts_.push_back({.request = waiting_.front()});
    waiting_.pop_front();
  }
}

GroupRows CountedQueue::Plan(int64_t mixed_rows, bool others_decode) {
  Admit();
  GroupRows rows = {.decode = static_cast<int64_t>(decoding_.size()), .decode_keys = keys_};
  const bool mixed = others_decode || rows.decode > 0;
  int64_t left = mixed ? std::min(limits_.chunk, mixed_rows) : limits_.chunk, keys = 0;
  for (Prompt& prompt : prompts_) {
    prompt.taken = std::min(left, arrivals_[prompt.request].input - prompt.done);
    if (prompt.taken == 0) break;
    left -= prompt.taken;
    rows.prompt += prompt.taken;
    keys += prompt.taken * (prompt.done + prompt.taken / 2);
  }
  if (rows.prompt > 0) rows.prompt_keys = keys / rows.prompt;
  return rows;
}

int64_t CountedQueue::StepsUntilEnd() const {
  return decoding_.empty() ? std::numeric_limits<int64_t>::max() : decoding_.top().end - ticks_;
}

void CountedQueue::Advance(int64_t steps, double now) {
  if (!decoding_.empty()) {
    ticks_ += steps;
    keys_ += steps * static_cast<int64_t>(decoding_.size());
    while (!decoding_.empty() && decoding_.top().end <= ticks_) {
      const Decoding done = decoding_.top();
      decoding_.pop();
      keys_ -= arrivals_[done.request].input + arrivals_[done.request].output;
      End(done.request, done.first, now);
    }
  }
  while (!prompts_.empty() && prompts_.front().taken > 0) {
    Prompt& prompt = prompts_.front();
    prompt.done += std::exchange(prompt.taken, 0);
    const Arrival& a = arrivals_[prompt.request];
    if (prompt.done < a.input) break;  // the last prompt of the step
    latencies_->AddFirst(a, now);
    if (a.output > 1) {
      decoding_.push({ticks_ + a.output - 1, prompt.request, now});
      keys_ += a.input + 1;
    } else {
      End(prompt.request, now, now);
    }
    prompts_.pop_front();
  }
}

void CountedQueue::End(size_t request, double first, double now) {
  const Arrival& a = arrivals_[request];
  reserved_ -= a.input + a.output;
  latencies_->AddLast(a, first, now);
}

ScheduledQueue::ScheduledQueue(std::span<const Arrival> arrivals, const QueueLimits& limits,
                               Latencies* latencies)
    : arrivals_(arrivals),
      latencies_(latencies),
      cache_(limits.pages, limits.page_size, limits.reuses_prefixes),
      scheduler_({.max_running_requests = limits.running,
                  .chunk_rows = limits.chunk,
                  .whole_prompts = limits.whole_prompts,
                  .max_logit_rows = limits.logit_rows},
                 cache_) {}

void ScheduledQueue::Arrive(size_t request) {
  const Arrival& a = arrivals_[request];
  EngineRequest made;
  made.id = request;
  made.input_ids = TokensOf(a, request);
  made.sampling.max_new_tokens = static_cast<int32_t>(a.output);
  Open& open = open_.emplace_back(std::move(made), request);
  open.self = std::prev(open_.end());
  scheduler_.Enqueue(&open);
}

GroupRows ScheduledQueue::Plan(int64_t mixed_rows, bool others_decode) {
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

void ScheduledQueue::Advance(int64_t, double now) {
  for (const auto& [sequence, count] : plan_) {
    auto& open = static_cast<Open&>(*sequence);
    open.computed += count;
    open.settled = open.computed;
    if (open.pending() > 0) continue;
    const Arrival& a = arrivals_[open.request_index];
    if (open.output_length() == 0) {
      open.first = now;
      latencies_->AddFirst(a, now);
      cache_.Publish(open.settled_tokens(), open.cache);
    }
    open.tokens.push_back(TokenOf(open.request_index, open.length()));
    if (open.output_length() < a.output) continue;
    latencies_->AddLast(a, open.first, now);
    scheduler_.Remove(&open);
    open_.erase(open.self);
  }
  plan_ = {};
}

}  // namespace switchyard::plan
