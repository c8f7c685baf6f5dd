// The expert formats that a checkpoint's config.json declares.
#pragma once

#include <set>

#include "model/config.h"

namespace switchyard {

struct ExpertFormats {
  std::set<WeightFormat> formats;  // formats of the stored weights
  // Formats of the input rows that are multiplied with these weights.
  std::set<ActivationFormat> activations;
  double bytes = 0;  // total of all routed experts of all layers
};
ExpertFormats ExpertFormatsOf(const ModelConfig& config);

}  // namespace switchyard
