// Statistics of requests and of the ends of ranks.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "server/metrics/page.h"

namespace switchyard {

// Counts of starts and ends of the ranks since the server started. An epoch is the time between two
// restarts of the ranks. Plain value.
struct RankHistory {
  int64_t epoch = 1;
  int64_t deaths = 0;   // ends of ranks that were followed by a restart, or by the server's end
  int64_t changes = 0;  // pauses for planned restarts, returns of ranks and changes of the layout
  int absent = 0;       // ranks of the layout that load while the others serve
  std::map<int, double> absent_for;  // seconds since the others serve without the rank, by rank
  double pause_seconds = 0;          // total time without serving ranks, from the first start on
  double paused_for = 0;             // seconds since the present pause began; 0: no pause
  double held_for = 0;               // seconds for which requests have been held back; 0: none are
};

}  // namespace switchyard

namespace switchyard::metrics {

// Values of the recent past: hit rate of the prefix cache, and throughput.

// The fraction of prompt tokens that were in the cache, over the last 1000 generations. One thread
// adds values; any thread may read.
class RecentHits {
 public:
  void Add(int64_t prompt_tokens, int64_t cached_tokens);
  double Rate() const;  // 0 without prompts

 private:
  struct Prompt {
    int64_t tokens = 0, cached = 0;
  };
  std::array<Prompt, 1000> prompts_{};  // ring buffer; accessed only by the thread that adds
  size_t next_ = 0;
  std::atomic<int64_t> tokens_{0}, cached_{0};  // sums over the ring
};

// Tokens per second over the last ten complete seconds. One thread adds values; any thread may
// read.
class RecentTokens {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void Add(int64_t tokens, Time now);
  double PerSecond(Time now) const;

 private:
  struct Second {
    std::atomic<int64_t> number{-1};  // second since the clock's epoch that this entry counts
    std::atomic<int64_t> tokens{0};
  };
  // A ring, indexed by the number of the second. The ring is longer than the window, so a reader
  // does not read an entry that is being overwritten.
  std::array<Second, 16> seconds_;
};

// Counters and times of the requests of one server.

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
