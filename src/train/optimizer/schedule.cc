#include "train/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace switchyard::train {

void CheckSchedule(const ScheduleOptions& options) {
  if (options.kind != "cosine" && options.kind != "wsd" && options.kind != "constant") {
    throw Invalid("--lr-schedule {}: want cosine, wsd or constant", options.kind);
  }
  if (!std::isfinite(options.rate) || options.rate <= 0) {
    throw Invalid("--learning-rate {}: want a positive number", options.rate);
  }
  if (!(options.final_part >= 0 && options.final_part <= 1)) {
    throw Invalid("--final-lr-part {}: want 0 to 1", options.final_part);
  }
  if (options.steps < 1) throw Invalid("--steps {}: want at least 1", options.steps);
  if (options.warmup_steps < 0 || options.decay_steps < 0 || options.warmup_steps > options.steps ||
      (options.kind == "wsd" && options.decay_steps > options.steps - options.warmup_steps)) {
    throw Invalid("--warmup-steps {} and --decay-steps {} do not fit into {} steps",
                  options.warmup_steps, options.decay_steps, options.steps);
  }
}

double LearningRate(const ScheduleOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const double low = options.rate * options.final_part;
  // Progress of the decay that starts at step `begin`: from 0 to 1 at the last step.
  const auto fallen = [&](int64_t begin) {
    const int64_t length = options.steps - begin;
    if (length <= 0) return 1.0;
    return std::clamp(static_cast<double>(step + 1 - begin) / static_cast<double>(length), 0.0,
                      1.0);
  };
  if (options.kind == "cosine") {
    const double part = fallen(options.warmup_steps);
    return low + (options.rate - low) * 0.5 * (1 + std::cos(std::numbers::pi * part));
  }
  if (options.kind == "wsd") {
    return options.rate - (options.rate - low) * fallen(options.steps - options.decay_steps);
  }
  return options.rate;
}

double RateFraction(const ScheduleOptions& options, int64_t step) {
  if (step < options.warmup_steps) return 1.0;
  return LearningRate(options, step) / options.rate;
}

}  // namespace switchyard::train
