// What a training run shows while it goes.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

#include "train/run/trainer.h"

namespace switchyard::train {

// Prints to a terminal one line that is written over, elsewhere a line every ten seconds. Say may
// be called by any thread.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // Borrows `out`. `in_place`: whether it is a terminal.
  Progress(std::FILE* out, bool in_place);
  ~Progress() { Finish(); }

  // Before the first step: how many there are, and how many were taken before this run.
  void Begin(int64_t steps, int64_t taken);
  void Step(const StepReport& report);
  // A line of its own.
  void Say(const std::string& text);
  // The line that stands stays; the last step is shown.
  void Finish();

 private:
  void Show();
  std::string Line() const;

  std::FILE* out_;
  const bool in_place_;
  std::mutex mutex_;
  int64_t steps_ = 0, begun_at_ = 0;
  StepReport last_;
  bool stands_ = false, shown_ = true;
  Clock::time_point begin_, next_;
  // Since the line was last shown: tokens and seconds of steps.
  int64_t tokens_ = 0;
  double seconds_ = 0, rate_ = 0;
};

// 59 s, 12:05 min, 3:07 h. Not negative.
std::string TimeText(double seconds);

}  // namespace switchyard::train
