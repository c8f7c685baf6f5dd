// log.jsonl: one line of a run for each step.
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

// An object of step, loss (what the step minimises) and its parts main, mtp and balance,
// learning_rate, gradient_norm, tokens, seconds, tokens_per_second, and the model's figures
// (balancedness, balancedness_worst, dead_experts).
nlohmann::ordered_json ToJson(const StepReport& report);

// Appends to a log. Used by one thread.
class StepLog {
 public:
  // Keeps of an earlier log the lines of steps up to `last_step`, those of the checkpoint that the
  // run goes on from, and nothing where that is 0. A log that cannot be written is passed to `warn`
  // once, and the run goes on without it.
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

// The lines of a log, oldest first; one that a crash has cut short is left out at the end. Throws
// Error that names file and line: one that cannot be read, holds no step, or has another line that
// is no JSON object.
std::vector<nlohmann::json> ReadStepLog(const std::filesystem::path& path);

}  // namespace switchyard::train
