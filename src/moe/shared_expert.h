// The expert that every token visits.
#pragma once

#include <cstdint>

#include "moe/layer.h"
#include "moe/scratch.h"

namespace switchyard {

// Scratch of AddSharedExpert; kept between calls.
struct SharedExpertScratch {
  Scratch<float> middle, y, gate;
};

// y[t] += sigmoid(gate · x[t]) · shared(x[t]), without a gate y[t] += shared(x[t]). x, y
// [tokens, H]. With a slice of the expert, the slice's part of the sum.
void AddSharedExpert(const MoeLayerConfig& config, const MoeLayerWeights& weights, const float* x,
                     int64_t tokens, SharedExpertScratch* scratch, ThreadPool& pool, float* y);

}  // namespace switchyard
