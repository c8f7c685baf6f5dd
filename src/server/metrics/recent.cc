#include "server/metrics/recent.h"

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

}  // namespace switchyard::metrics
