// Random step shapes for the tests of this module.
#pragma once

#include <random>
#include <vector>

#include "schedule/plan.h"

namespace switchyard::schedule::testing {

inline int Below(std::mt19937_64& random, int n) {
  return static_cast<int>(random() % static_cast<uint64_t>(n));
}

// One shape for each stage of a pipeline.
inline std::vector<StepShape> RandomPipeline(std::mt19937_64& random, int most_stages) {
  StepShape shape{.micro_batches = Below(random, 12),
                  .order = static_cast<Order>(Below(random, 3)),
                  .stages = 1 + Below(random, most_stages),
                  .early_sums = Below(random, 2) == 0};
  std::vector<StepShape> stages;
  for (shape.stage = 0; shape.stage < shape.stages; ++shape.stage) {
    shape.experts.resize(1 + Below(random, 4));
    for (size_t i = 0; i < shape.experts.size(); ++i) shape.experts[i] = Below(random, 3) > 0;
    stages.push_back(shape);
    shape.first_layer += shape.layers();
  }
  return stages;
}

}  // namespace switchyard::schedule::testing
