// The shared expert.
#pragma once

#include <cstdint>

#include "core/parallel.h"
#include "moe/layer_config.h"
#include "moe/scratch.h"

namespace switchyard {

// Scratch of the functions below, kept between calls.
struct SharedExpertScratch {
  Scratch<float> middle, gate;
  Scratch<float> y;  // [tokens, H] output of ComputeSharedExpert
};

// scratch->y[t] = sigmoid(gate · x[t]) · shared(x[t]); shared(x[t]) without a gate. x [tokens, H].
// With a TP slice of the expert: the slice's partial sum.
void ComputeSharedExpert(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                         const float* x, int64_t tokens, SharedExpertScratch* scratch,
                         ThreadPool& pool);

// [tokens] sigmoid(gate · x[t]), stored in the scratch; null without a gate.
const float* SharedGates(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                         const float* x, int64_t tokens, SharedExpertScratch* scratch,
                         ThreadPool& pool);

// Error kInvalid if the shared expert cannot be dispatched as a routed one, whose intermediate size
// is `intermediate`.
void CheckSharedFits(const MoeLayerWeights& weights, int64_t intermediate);

}  // namespace switchyard
