// The shared expert.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "moe/layer_config.h"
#include "moe/scratch.h"

namespace switchyard {

// Scratch memory of the functions below. It is kept between calls.
struct SharedExpertScratch {
  Scratch<float> middle, gate;
  Scratch<float> y;  // [tokens, H] output of ComputeSharedExpert
};

// Computes scratch->y[t] = sigmoid(gate · x[t]) · shared(x[t]), or shared(x[t]) if there is no
// gate. x: [tokens, H]. If the weights are a TP slice of the expert, the result is the slice's
// partial sum.
void ComputeSharedExpert(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                         const float* x, int64_t tokens, SharedExpertScratch* scratch,
                         ThreadPool& pool);

// Returns [tokens] sigmoid(gate · x[t]), stored in the scratch; null if there is no gate.
const float* SharedGates(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                         const float* x, int64_t tokens, SharedExpertScratch* scratch,
                         ThreadPool& pool);

}  // namespace switchyard
