// Input rows in an ActivationFormat. Each row is rounded by itself, to the same bits on every CPU.
#pragma once

#include <cstdint>

#include "quant/formats.h"

namespace switchyard {

// Rounds x [n] to the format's grid: out[i] = code · scale. `input_scale` is kFp8Tensor's. `out`
// may be x. kFp8Group counts its groups from x[0]: with MoE-TP a rank's part of a row has groups of
// its own, and kFp8Token and kInt8Token take their scale from the part.
void RoundActivations(ActivationFormat format, float input_scale, const float* x, int64_t n,
                      float* out);

// x [n] rounded to kBFloat16.
void NarrowToBFloat16(const float* x, int64_t n, uint16_t* out);

// x [n] as int8 codes -127..127 of kInt8Token: x[i] ≈ codes[i] · scale.
struct Int8Row {
  float scale = 0;  // amax / 127, at least 2^-64
  int32_t sum = 0;  // of the codes
};
Int8Row QuantizeInt8Row(const float* x, int64_t n, int8_t* codes);

}  // namespace switchyard
