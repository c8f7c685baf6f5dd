// The expert formats that a checkpoint's config.json declares.
#pragma once

#include <set>

#include "model/config.h"

namespace switchyard {

struct ExpertFormats {
  std::set<WeightFormat> formats;          // of the stored weights
  std::set<ActivationFormat> activations;  // of the rows that are multiplied with the weights
  double bytes = 0;                        // of all routed experts of all layers
};
ExpertFormats ExpertFormatsOf(const ModelConfig& config);

}  // namespace switchyard
