// What the next steps will look like, from the recorded ones.
#pragma once

#include <vector>

#include "eplb/types.h"

namespace switchyard {

struct LoadForecast {
  int layers = 0, experts = 0;
  std::vector<float> load;       // [layers, experts] tokens of a step
  std::vector<float> half_life;  // [layers] steps after which a recorded count weighs half

  std::span<const float> Layer(int layer) const {
    return std::span(load).subspan(static_cast<size_t>(layer) * experts, experts);
  }
};

// For each layer an exponentially weighted mean of its steps. Several half-lives, 1 to 40 steps,
// run side by side over the history; each step is held against what they foretold, and the one with
// the least absolute error, old errors counting less (half after 10 steps), is taken. So a steady
// load is averaged over all of the history, one that wanders follows the last steps, and after a
// sudden change the old shape is soon forgotten. With no steps everything is 0.
LoadForecast Forecast(const LoadHistory& history);

}  // namespace switchyard
