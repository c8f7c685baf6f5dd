// Counters and times of the requests of one server.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "server/metrics/histogram.h"
#include "server/metrics/recent.h"

namespace switchyard::metrics {

using Clock = std::chrono::steady_clock;

// How a generation ended.
enum class End { kStop, kLength, kAbort, kTimeout, kError };
inline constexpr int kNumEnds = 5;
const char* Name(End end);  // "stop", "length", "abort", "timeout", "error"

// Times of one generation. Owned by its entry in Front.
struct RequestTimes {
  Clock::time_point submitted{}, first_token{}, last_token{};
  double queue_seconds = -1;  // time in the scheduler's queue; −1: unknown
  bool has_token = false;
};

// Output of a generation since the previous call of AddOutput.
struct NewOutput {
  int64_t tokens = 0;  // number of generated tokens
  int64_t prompt_tokens = 0, cached_tokens = 0;
  double queue_seconds = -1;
};

// Owned by Front. Any thread may call any member except AddOutput, which only the thread of
// Front::OnMessage calls. No member takes a lock.
//
// A generation is one sample; a request with n = 2 and one prompt has two generations. Times are
// measured in the server process, from Front::Submit to the arrival of tokens from the ranks. The
// times of tokens (first_token, inter_token) and the counters include all generations. The other
// times and sizes include only generations that ended with stop or length.
class RequestMetrics {
 public:
  explicit RequestMetrics(int64_t context_length);

  void AddSubmission(int64_t max_new_tokens);
  void AddOutput(const NewOutput& output, Clock::time_point now, RequestTimes* times);
  // Counts a generation that has ended. `times`, `prompt_tokens` and `tokens` are those of the
  // whole generation.
  void AddEnd(End end, const RequestTimes& times, int64_t prompt_tokens, int64_t tokens,
              Clock::time_point now);
  void CountEnd(End end) { ends_[static_cast<int>(end)].fetch_add(1, std::memory_order_relaxed); }
  // Counts a prompt whose `copies` generations have all ended. `most_tokens`: tokens of the longest
  // one.
  void AddCopies(int64_t copies, int64_t most_tokens);

  uint64_t submitted() const { return submitted_; }
  uint64_t prompt_tokens() const {
    return prompt_tokens_;
  }  // counts only generations with a first token
  uint64_t cached_tokens() const { return cached_tokens_; }
  uint64_t generation_tokens() const { return generation_tokens_; }
  uint64_t ended(End end) const { return ends_[static_cast<int>(end)]; }
  double cache_hit_rate() const { return hits_.Rate(); }
  double tokens_per_second(Clock::time_point now) const { return throughput_.PerSecond(now); }

  const std::vector<double> token_bounds;  // bucket bounds of token counts, as in vLLM

  // Times, in seconds.
  Histogram first_token, inter_token, per_output_token;
  Histogram latency, queue, prefill, decode, inference;
  // Token counts, and `copies`, the number of generations per prompt. most_tokens: tokens of the
  // longest generation of a prompt; max_new_tokens: token limit of a generation.
  Histogram request_prompt_tokens, request_tokens, copies, most_tokens, max_new_tokens;

 private:
  std::atomic<uint64_t> submitted_{0}, prompt_tokens_{0}, cached_tokens_{0}, generation_tokens_{0};
  std::array<std::atomic<uint64_t>, kNumEnds> ends_{};
  RecentHits hits_;
  RecentTokens throughput_;
};

}  // namespace switchyard::metrics
