// What config.json says of a checkpoint's experts.
#pragma once

#include <set>

#include "model/config.h"

namespace switchyard {

struct ExpertFormats {
  std::set<WeightFormat> formats;          // in memory
  std::set<ActivationFormat> activations;  // of the rows that they multiply
  double bytes = 0;                        // of all routed experts of all layers
};
ExpertFormats ExpertFormatsOf(const ModelConfig& config);

}  // namespace switchyard
