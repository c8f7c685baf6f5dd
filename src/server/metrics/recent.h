// Values of the recent past: hit rate of the prefix cache, and throughput.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace switchyard::metrics {

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

}  // namespace switchyard::metrics
