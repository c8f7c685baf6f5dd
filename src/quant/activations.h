// Activation quantization: rounds input rows to an ActivationFormat. Rows are independent, and
// results are bit-identical on every CPU.
#pragma once

#include <cstdint>

#include "quant/formats.h"

namespace switchyard {

// Rounds x [n] to the grid of the format: out[i] = code · scale. `input_scale` is used by
// kFp8Tensor only. `out` may alias x. The groups of kFp8Group and kInt8Group start at x[0], so with
// MoE-TP each rank's slice of a row has its own groups. With kFp8Token and kInt8Token each slice
// has its own scale.
void RoundActivations(ActivationFormat format, float input_scale, const float* x, int64_t n,
                      float* out);

// Rounds x [n] to bfloat16, as kBFloat16 does.
void NarrowToBFloat16(const float* x, int64_t n, uint16_t* out);

// Quantizes x [n] to int8 codes -127..127 of kInt8Token: x[i] ≈ codes[i] · scale.
struct Int8Row {
  float scale = 0;  // amax / 127, at least 2^-64
  int32_t sum = 0;  // sum of the codes
};
Int8Row QuantizeInt8Row(const float* x, int64_t n, int8_t* codes);

// Quantizes x [n] to codes of kInt8Group, with ceil(n / kInt8GroupSize) scales like those of
// Int8Row.
void QuantizeInt8Groups(const float* x, int64_t n, int8_t* codes, float* scales);

}  // namespace switchyard
