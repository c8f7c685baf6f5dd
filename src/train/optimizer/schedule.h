// The learning rate of each step.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::train {

struct ScheduleOptions {
  // cosine: falls along half a cosine from the end of the warm-up to the last step (Loshchilov,
  // Hutter: SGDR, 2017). wsd: warm-up, stable, decay: stays, then falls by a straight line over the
  // last `decay_steps` (Hu et al.: MiniCPM, 2024). constant: stays.
  std::string kind = "cosine";
  double rate = 1e-3;        // the largest
  double final_part = 0.1;   // of `rate`, at the last step
  int64_t warmup_steps = 0;  // from rate / warmup_steps up to rate by a straight line
  int64_t decay_steps = 0;   // wsd
  int64_t steps = 0;         // in all
};

// Throws Error kInvalid, naming the flag: an unknown kind, a rate that is not finite and positive,
// final_part outside [0, 1], warm-up and decay together longer than the run.
void CheckSchedule(const ScheduleOptions& options);

// Of step 0, 1, … steps - 1. After the last it stays as low as there.
double LearningRate(const ScheduleOptions& options, int64_t step);

// How far the rate has fallen, as a part of the largest: 1 through warm-up and plateau, final_part
// at the last step. For what should settle together with the weights.
double RatePart(const ScheduleOptions& options, int64_t step);

}  // namespace switchyard::train
