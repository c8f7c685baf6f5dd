// Table of cosines and sines for rotary position embedding, as transformers computes it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "model/config.h"

namespace switchyard {

// Angle per position of each rotated pair, [rotary_dim / 2]: theta^(-2i / rotary_dim), scaled by
// type:
//   linear    divided by the factor
//   llama3    low frequencies divided by the factor, high ones unscaled, a linear ramp in between;
//             no ramp if low_freq_factor equals high_freq_factor (Llama 4 Scout)
//   yarn      like llama3, with the ramp of Peng et al. (https://arxiv.org/abs/2309.00071)
//   longrope  divided by short_factor
// For `dynamic` and `longrope` the result is valid for sequences up to the original length.
// Computed in float32 with transformers' order of operations: at position 10^5, a relative error of
// 10^-7 in the frequency turns a pair by a hundredth of a radian.
std::vector<float> InverseFrequencies(const RopeConfig& rope);

// YaRN's temperature: 0.1 · mscale · ln(factor) + 1, or 1 if the factor is at most 1.
double YarnMscale(const RopeConfig& rope, double mscale);

// The factor of cosines and sines. longrope and yarn: attention_factor if given. Otherwise:
//   longrope  sqrt(1 + ln(factor) / ln(original length)), or 1 if the factor is at most 1
//   yarn      YarnMscale(mscale) / YarnMscale(mscale_all_dim) if both are given, else YarnMscale(1)
//   others    1
double RopeAttentionFactor(const RopeConfig& rope);

// float32 [max_position, rotary_dim]: per position rotary_dim / 2 cosines, then as many sines,
// times RopeAttentionFactor. With `dynamic` and `longrope`, a position past the original length has
// the frequencies of a sequence that ends there. The layout of kernels::RopeParams::cos_sin.
// Undefined without rotary embedding (rotary_dim 0).
Tensor BuildCosSin(const RopeConfig& rope, int64_t max_position);

// float32 [max_position, QueryScaleWidth] in the same layout: cosines that are the factor of
// queries at a position (AttentionConfig::query_scale_beta), and sines that are 0. So the rotation
// of each QueryScaleWidth elements by this table scales them, with the op that every device has.
// Undefined without such a factor.
int64_t QueryScaleWidth(const AttentionConfig& attention);  // divides head_dim; 0: no factor
Tensor BuildQueryScale(const AttentionConfig& attention, int64_t max_position);

}  // namespace switchyard
