// The expert that every token visits.
#pragma once

#include <cstdint>

#include "moe/layer.h"
#include "moe/scratch.h"

namespace switchyard {

// Scratch of the two below; kept between calls.
struct SharedExpertScratch {
  Scratch<float> middle, gate;
  Scratch<float> y;  // [tokens, H] what ComputeSharedExpert leaves
};

// scratch->y[t] = sigmoid(gate · x[t]) · shared(x[t]), without a gate shared(x[t]). x [tokens, H].
// With a slice of the expert, the slice's part of the sum.
void ComputeSharedExpert(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                         const float* x, int64_t tokens, SharedExpertScratch* scratch,
                         ThreadPool& pool);

// [tokens] sigmoid(gate · x[t]), in the scratch; null without a gate.
const float* SharedGates(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                         const float* x, int64_t tokens, SharedExpertScratch* scratch,
                         ThreadPool& pool);

}  // namespace switchyard
