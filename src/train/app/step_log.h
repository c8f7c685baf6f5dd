// log.jsonl: one line for each step of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/run/trainer.h"

namespace switchyard::train {

// An object of step, loss (the total that the step minimizes) and its parts main, mtp and balance,
// learning_rate, gradient_norm, tokens, seconds, tokens_per_second, and the model's metrics
// (balancedness, balancedness_worst, dead_experts).
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

}  // namespace switchyard::train
