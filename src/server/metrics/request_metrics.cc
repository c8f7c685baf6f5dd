#include "server/metrics/request_metrics.h"

#include <algorithm>
#include <iterator>

#include "server/metrics/page.h"

namespace switchyard::metrics {
namespace {

constexpr int64_t kWindow = 10;  // seconds

int64_t SecondOf(RecentTokens::Time time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
}

}  // namespace

void RecentHits::Add(int64_t prompt_tokens, int64_t cached_tokens) {
  Prompt& oldest = prompts_[next_++ % prompts_.size()];
  tokens_.fetch_add(prompt_tokens - oldest.tokens, std::memory_order_relaxed);
  cached_.fetch_add(cached_tokens - oldest.cached, std::memory_order_relaxed);
  oldest = {.tokens = prompt_tokens, .cached = cached_tokens};
}

double RecentHits::Rate() const {
  const auto tokens = static_cast<double>(tokens_.load(std::memory_order_relaxed));
  return tokens > 0 ? static_cast<double>(cached_.load(std::memory_order_relaxed)) / tokens : 0;
}

void RecentTokens::Add(int64_t tokens, Time now) {
  const int64_t number = SecondOf(now);
  Second& second = seconds_[static_cast<size_t>(number) % seconds_.size()];
  if (second.number.load(std::memory_order_relaxed) != number) {
    second.tokens.store(0, std::memory_order_relaxed);
    second.number.store(number, std::memory_order_relaxed);
  }
  second.tokens.fetch_add(tokens, std::memory_order_relaxed);
}

double RecentTokens::PerSecond(Time now) const {
  const int64_t current = SecondOf(now);
  int64_t tokens = 0;
  for (const Second& second : seconds_) {
    const int64_t number = second.number.load(std::memory_order_relaxed);
    if (number >= current - kWindow && number < current)
      tokens += second.tokens.load(std::memory_order_relaxed);
  }
  return static_cast<double>(tokens) / kWindow;
}

namespace {

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

void Add(std::atomic<uint64_t>& counter, int64_t count) {
  counter.fetch_add(static_cast<uint64_t>(count), std::memory_order_relaxed);
}

}  // namespace

const char* Name(End end) {
  switch (end) {
    case End::kStop:
      return "stop";
    case End::kLength:
      return "length";
    case End::kAbort:
      return "abort";
    case End::kTimeout:
      return "timeout";
    case End::kError:
      return "error";
  }
  return "";
}

RequestMetrics::RequestMetrics(int64_t context_length)
    : token_bounds(OneTwoFive(context_length)),
      first_token(Union(kSglangFirstToken, kVllmFirstToken)),
      inter_token(Union(kSglangInterToken, kVllmInterToken)),
      per_output_token(Union(kSglangInterToken, kVllmInterToken)),
      latency(Union(kSglangLatency, kVllmLatency)),
      queue(Union(kSglangQueue, kVllmLatency)),
      prefill(Union(kSglangFirstToken, kVllmLatency)),
      decode(Union(kSglangLatency, kVllmLatency)),
      inference(Union(kSglangLatency, kVllmLatency)),
      request_prompt_tokens(Union(kSglangTokens, token_bounds)),
      request_tokens(Union(kSglangTokens, token_bounds)),
      copies({std::begin(kVllmCopies), std::end(kVllmCopies)}),
      most_tokens(token_bounds),
      max_new_tokens(token_bounds) {}

void RequestMetrics::AddSubmission(int64_t max_tokens) {
  submitted_.fetch_add(1, std::memory_order_relaxed);
  max_new_tokens.Observe(static_cast<double>(max_tokens));
}

void RequestMetrics::AddOutput(const NewOutput& output, Clock::time_point now,
                               RequestTimes* times) {
  if (output.tokens <= 0) return;
  if (times->has_token) {
    const auto count = static_cast<double>(output.tokens);
    inter_token.Observe(Seconds(now - times->last_token) / count, output.tokens);
  } else {
    times->has_token = true;
    times->first_token = now;
    times->queue_seconds = output.queue_seconds;
    first_token.Observe(Seconds(now - times->submitted));
    Add(prompt_tokens_, output.prompt_tokens);
    Add(cached_tokens_, output.cached_tokens);
    hits_.Add(output.prompt_tokens, output.cached_tokens);
  }
  times->last_token = now;
  Add(generation_tokens_, output.tokens);
  throughput_.Add(output.tokens, now);
}

void RequestMetrics::AddEnd(End end, const RequestTimes& times, int64_t prompt_tokens,
                            int64_t tokens, Clock::time_point now) {
  CountEnd(end);
  if (end != End::kStop && end != End::kLength) return;
  const double total = Seconds(now - times.submitted);
  latency.Observe(total);
  request_prompt_tokens.Observe(static_cast<double>(prompt_tokens));
  request_tokens.Observe(static_cast<double>(tokens));
  if (!times.has_token) return;  // no token: only log-probabilities of the prompt were requested
  const double decoding = Seconds(times.last_token - times.first_token);
  decode.Observe(decoding);
  if (tokens > 1) per_output_token.Observe(decoding / static_cast<double>(tokens - 1));
  if (times.queue_seconds < 0) return;
  queue.Observe(times.queue_seconds);
  inference.Observe(std::max(0.0, total - times.queue_seconds));
  prefill.Observe(
      std::max(0.0, Seconds(times.first_token - times.submitted) - times.queue_seconds));
}

void RequestMetrics::AddCopies(int64_t count, int64_t most) {
  copies.Observe(static_cast<double>(count));
  most_tokens.Observe(static_cast<double>(most));
}

}  // namespace switchyard::metrics
