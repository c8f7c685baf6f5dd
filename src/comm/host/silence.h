// Time since the last heartbeat, as seen by one observer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace switchyard {

inline constexpr std::chrono::milliseconds kHeartbeatSampleTime{100};  // between two samples

// Measures from regular samples how long a counter has not changed. The time between two samples
// counts for at most `longest_gap`. While the observer itself is stopped (SIGSTOP, a suspended
// machine), it takes no samples, and this time must not count against the observed process.
// Single-threaded.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Silence(std::chrono::milliseconds longest_gap) : longest_gap_(longest_gap) {}

  // A counter of 0 means that no heartbeat is expected.
  void Sample(uint64_t beats, Clock::time_point now) {
    if (beats == 0 || beats != beats_ || sampled_ == Clock::time_point()) {
      silent_ = {};
    } else {
      silent_ += std::min<Clock::duration>(now - sampled_, longest_gap_);
    }
    beats_ = beats;
    sampled_ = now;
  }

  Clock::duration length() const { return silent_; }

 private:
  std::chrono::milliseconds longest_gap_;
  uint64_t beats_ = 0;
  Clock::time_point sampled_{};
  Clock::duration silent_{};
};

}  // namespace switchyard
