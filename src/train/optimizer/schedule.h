// Learning rate schedules.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::train {

struct ScheduleOptions {
  // cosine: follows half a cosine from the end of the warm-up to the last step (Loshchilov, Hutter:
  // SGDR, 2017). wsd: warm-up, stable, decay: constant, then linear decay over the last
  // `decay_steps` (Hu et al.: MiniCPM, 2024). constant: no decay.
  std::string kind = "cosine";
  double rate = 1e-3;        // maximum learning rate
  double final_part = 0.1;   // fraction of `rate` at the last step
  int64_t warmup_steps = 0;  // steps of linear warm-up, from rate / warmup_steps to rate
  int64_t decay_steps = 0;   // steps of the decay of wsd
  int64_t steps = 0;         // total steps of the run
};

// Throws Error kInvalid, naming the flag: an unknown kind, a rate that is not finite and positive,
// final_part outside [0, 1], warm-up and decay together longer than the run.
void CheckSchedule(const ScheduleOptions& options);

// For steps 0 to steps - 1. Later steps have the rate of the last one.
double LearningRate(const ScheduleOptions& options, int64_t step);

// The rate as a fraction of the maximum: 1 during warm-up and plateau, final_part at the last step.
// Used for quantities that should decay together with the learning rate, such as the bias step.
double RateFraction(const ScheduleOptions& options, int64_t step);

}  // namespace switchyard::train
