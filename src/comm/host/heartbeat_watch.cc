#include "comm/host/heartbeat_watch.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/format.h"

namespace switchyard {

std::string RankSilence::Name() const {
  return pid > 0 ? fmt::format("rank {} (pid {})", rank, pid) : fmt::format("rank {}", rank);
}

std::string RankSilence::Reason() const {
  return fmt::format("{} sent no heartbeat for {:.0f} s (--watchdog-timeout)", Name(), seconds());
}

HeartbeatWatch::HeartbeatWatch(std::shared_ptr<const SharedArena> arena,
                               const std::vector<int>& ranks, std::chrono::milliseconds timeout,
                               OnSilent on_silent)
    : timeout_(timeout), on_silent_(std::move(on_silent)), arena_(std::move(arena)) {
  for (const int rank : ranks) {
    watched_.push_back({.rank = rank, .silence = Silence(2 * kHeartbeatSampleTime)});
  }
  if (!watched_.empty()) thread_ = std::thread([this] { Run(); });
}

HeartbeatWatch::~HeartbeatWatch() { Stop(); }

void HeartbeatWatch::Run() {
  pthread_setname_np(pthread_self(), "heartbeats");
  for (;;) {
    for (const RankSilence& silence : Sample()) on_silent_(silence);
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kHeartbeatSampleTime, [this] { return stopped_; })) return;
  }
}

// Returns the ranks to report. The rank with the longest silence is first, since the others may
// only be waiting for it.
std::vector<RankSilence> HeartbeatWatch::Sample() {
  std::vector<RankSilence> silent;
  const auto now = Silence::Clock::now();
  const std::lock_guard lock(mutex_);
  for (Watched& watched : watched_) {
    watched.silence.Sample(arena_->beats(watched.rank), now);
    const auto length = watched.silence.length();
    if (timeout_.count() == 0 || length < timeout_ || watched.reported) continue;
    watched.reported = true;
    silent.push_back({.rank = watched.rank, .length = length});
  }
  std::ranges::stable_sort(silent, std::greater{}, &RankSilence::length);
  return silent;
}

RankSilence HeartbeatWatch::Longest() const {
  RankSilence longest;
  const std::lock_guard lock(mutex_);
  for (const Watched& watched : watched_) {
    if (watched.silence.length() <= longest.length) continue;
    longest = {.rank = watched.rank, .length = watched.silence.length()};
  }
  return longest;
}

void HeartbeatWatch::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    watched_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  arena_.reset();
}

}  // namespace switchyard
