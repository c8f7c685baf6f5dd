// Passes over a whole vocabulary, shared by sampling and logprobs.
//
// Loops run in blocks of fixed length that compilers vectorise for any instruction set. The
// code fixes the reduction order, so all ranks and machines get the same bits.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard {

bool AllFinite(std::span<const float> logits);

float Max(std::span<const float> values);  // `values` is not empty and has no NaN

// The lowest index of the largest value; 0 if `values` is empty.
int32_t ArgMax(std::span<const float> values);

// weights[i] = exp((values[i] − max) · inverse_temperature), for values up to max; −inf gives 0.
// Returns their sum. Relative error of a weight below 2e-7; weights below 1e-37 are 0.
double ExpWeights(std::span<const float> values, float max, float inverse_temperature,
                  float* weights);
// The sum that ExpWeights returns for temperature 1, without the weights.
double ExpSum(std::span<const float> values, float max);

}  // namespace switchyard
