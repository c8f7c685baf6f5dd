// Rotary position embedding's table of cosines and sines, as transformers computes it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "model/config.h"

namespace switchyard {

// Angle per position of each rotated pair, [rotary_dim / 2]: theta^(-2i / rotary_dim), changed as
// the type asks (linear: divided by the factor; llama3: low frequencies divided, a ramp between;
// yarn: a ramp between divided and plain, after Peng et al., https://arxiv.org/abs/2309.00071;
// longrope: divided by short_factor). Those of `dynamic` and `longrope` are for sequences up to the
// original length. Computed in float32 with transformers' order of operations: at position 10^5 an
// angle that is off by one part in 10^7 already turns a pair by a hundredth of a radian.
std::vector<float> InverseFrequencies(const RopeConfig& rope);

// Yarn's temperature: 0.1 · mscale · ln(factor) + 1, or 1 where nothing is stretched.
double YarnMscale(const RopeConfig& rope, double mscale);

// What cosines and sines are multiplied by: attention_factor where given; for longrope
// sqrt(1 + ln(factor) / ln(original length)); else 1 but for yarn, there YarnMscale(mscale) /
// YarnMscale(mscale_all_dim) where both are, else YarnMscale(1).
double RopeAttentionFactor(const RopeConfig& rope);

// float32 [max_position, rotary_dim]: of each position rotary_dim / 2 cosines, then as many sines,
// times RopeAttentionFactor. With `dynamic` and `longrope` a position past the original length has
// the frequencies of a sequence that ends there. The layout kernels::RopeParams::cos_sin wants.
Tensor BuildCosSin(const RopeConfig& rope, int64_t max_position);

}  // namespace switchyard
