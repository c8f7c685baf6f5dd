// The progress of a run: log.jsonl and the display.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/run/trainer.h"

namespace switchyard::train {

// log.jsonl: one line for each step of a run.

// An object of step, loss (the total that the step minimizes) and its parts main, mtp and balance,
// learning_rate, gradient_norm, tokens, seconds, tokens_per_second, and the model's metrics
// (balancedness, balancedness_worst, dead_experts). If the update was skipped also skipped, the
// reason. Numbers that are not finite become null.
nlohmann::ordered_json ToJson(const StepReport& report);

// Appends to a log. Used by one thread.
class StepLog {
 public:
  // Keeps the lines of an existing log up to `last_step`, the step of the checkpoint that the run
  // resumes from; with 0 it starts an empty log. If the log cannot be written, `warn` is called
  // once and the run continues without it.
  StepLog(const std::filesystem::path& path, int64_t last_step,
          std::function<void(const std::string&)> warn);

  void Write(const StepReport& report);

 private:
  void Warn(const std::string& what);

  std::filesystem::path path_;
  std::function<void(const std::string&)> warn_;
  bool warned_ = false;
  std::ofstream out_;
};

// The lines of a log, oldest first. An invalid last line is skipped, because a crash may truncate
// it. Throws Error that names the file, and the line if there is one: the file cannot be read, no
// line is valid, or an earlier line is not a JSON object with a number `step`.
std::vector<nlohmann::json> ReadStepLog(const std::filesystem::path& path);

// Progress display of a training run.

// On a terminal, prints one line that is updated in place; elsewhere, a line every ten seconds. Any
// thread may call Say.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // Borrows `out`; null: nothing is printed. `in_place`: whether it is a terminal.
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
