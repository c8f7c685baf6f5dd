// The passes over a whole vocabulary that sampling and logprobs share.
//
// Loops are written in blocks of fixed length that compilers vectorise on any instruction set; the
// order of additions is fixed by the code, so all ranks and machines get the same bits.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard {

bool AllFinite(std::span<const float> logits);

float Max(std::span<const float> values);  // of at least one value, none NaN

// The lowest index that holds the largest value; 0 where `values` is empty.
int32_t ArgMax(std::span<const float> values);

// weights[i] = exp((values[i] − max) · inverse_temperature), for values up to max; −inf gives 0.
// Returns their sum. Relative error of a weight below 2e-7; weights below 1e-37 are 0.
double ExpWeights(std::span<const float> values, float max, float inverse_temperature,
                  float* weights);
// The same sum at temperature 1, without the weights.
double ExpSum(std::span<const float> values, float max);

}  // namespace switchyard
