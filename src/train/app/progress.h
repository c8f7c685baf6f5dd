// Progress display of a training run.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

#include "train/run/trainer.h"

namespace switchyard::train {

// On a terminal, prints one line that is updated in place; elsewhere, a line every ten seconds. Any
// thread may call Say.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // Borrows `out`. `in_place`: whether it is a terminal.
  Progress(std::FILE* out, bool in_place);
  ~Progress() { Finish(); }

  // Called before the first step, with the total number of steps and the number of steps taken
  // before this run.
  void Begin(int64_t steps, int64_t taken);
  void Step(const StepReport& report);
  // Prints a separate line.
  void Say(const std::string& text);
  // Shows the last step and ends the in-place line.
  void Finish();

 private:
  void Show();
  std::string Line() const;

  std::FILE* out_;
  const bool in_place_;
  std::mutex mutex_;
  int64_t steps_ = 0, begun_at_ = 0;
  StepReport last_;
  bool line_open_ = false, shown_ = true;
  Clock::time_point begin_, next_;
  // Accumulated since the line was last shown: tokens and seconds of steps.
  int64_t tokens_ = 0;
  double seconds_ = 0, rate_ = 0;
};

// Formats 59 s, 12:05 min, 3:07 h. `seconds` must not be negative.
std::string TimeText(double seconds);

}  // namespace switchyard::train
