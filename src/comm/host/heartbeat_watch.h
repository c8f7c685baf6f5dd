// Detects ranks without a recent heartbeat.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

// Time since the last heartbeat, as seen by one observer.

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

// Detects ranks without a recent heartbeat.

// A serving rank without a recent heartbeat.
struct RankSilence {
  int rank = -1;  // −1: none
  int pid = 0;    // 0: not a child of this process
  std::chrono::steady_clock::duration length{};

  std::string Name() const;    // "rank 1 (pid 4711)", "rank 1"
  std::string Reason() const;  // why the engine ends: "rank 1 sent no heartbeat for 300 s (…)"
  double seconds() const { return std::chrono::duration<double>(length).count(); }
};

// Samples heartbeats on a separate thread, for ranks that are not child processes: ranks of other
// hosts and a rank that is a thread of this process. Owned by the RankHost of this node.
// Thread-safe.
class HeartbeatWatch {
 public:
  // Called on the separate thread, once for each rank that has sent no heartbeat for `timeout` (0:
  // never called). Must neither throw nor call Stop.
  using OnSilent = std::function<void(const RankSilence&)>;

  HeartbeatWatch(std::shared_ptr<const SharedArena> arena, const std::vector<int>& ranks,
                 std::chrono::milliseconds timeout, OnSilent on_silent);
  ~HeartbeatWatch();
  HeartbeatWatch(const HeartbeatWatch&) = delete;
  HeartbeatWatch& operator=(const HeartbeatWatch&) = delete;

  // The rank with the longest time since its last heartbeat, and that time.
  RankSilence Longest() const;
  // Ends the thread and releases the arena. A second call has no effect. Calls must not be
  // concurrent.
  void Stop();

 private:
  struct Watched {
    int rank = -1;
    Silence silence;
    bool reported = false;
  };
  void Run();
  std::vector<RankSilence> Sample();

  const std::chrono::milliseconds timeout_;
  const OnSilent on_silent_;
  std::shared_ptr<const SharedArena> arena_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Watched> watched_;
  bool stopped_ = false;

  std::thread thread_;  // last: uses the members above
};

}  // namespace switchyard
