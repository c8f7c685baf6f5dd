// Forecasts the expert load of the next steps from recorded steps.
#pragma once

#include <vector>

#include "eplb/types.h"

namespace switchyard {

struct LoadForecast {
  int layers = 0, experts = 0;
  std::vector<float> load;       // [layers, experts] tokens per step
  std::vector<float> half_life;  // [layers] steps after which the weight of a count halves

  std::span<const float> Layer(int layer) const {
    return std::span(load).subspan(static_cast<size_t>(layer) * experts, experts);
  }
};

// An exponentially weighted moving average for each layer. Several half-lives, 1 to 40 steps, run
// in parallel over the history. At each step, the forecast of each half-life is compared with the
// counts. The half-life with the least absolute error is selected; the weight of an error halves
// after 10 steps. So a steady load is averaged over the whole history, a drifting load follows the
// last steps, and after a sudden shift the old distribution is soon forgotten. Without steps all
// fields are 0.
LoadForecast Forecast(const LoadHistory& history);

}  // namespace switchyard
