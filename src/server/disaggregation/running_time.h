// Time limits that do not run while generation is paused.
#pragma once

#include <chrono>
#include <optional>

namespace switchyard {

// A clock that stops during pauses. Not thread-safe.
class RunningTime {
 public:
  using Clock = std::chrono::steady_clock;

  // For comparisons with other results only.
  Clock::time_point Now() const { return stopped_.value_or(Clock::now()) - paused_; }
  void SetPaused(bool paused) {
    if (paused == stopped_.has_value()) return;
    if (paused) {
      stopped_ = Clock::now();
      return;
    }
    paused_ += Clock::now() - *stopped_;
    stopped_.reset();
  }

 private:
  std::optional<Clock::time_point> stopped_;  // since then
  Clock::duration paused_{};                  // the length of all earlier pauses
};

}  // namespace switchyard
