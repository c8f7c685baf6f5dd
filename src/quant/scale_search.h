// Scales of 4-bit groups with a small squared error, for weights that are quantized without a
// calibration.
//
// Squared errors of int4 are weighted: by x² if symmetric, else by |x| plus the group's mean
// magnitude. llama.cpp uses similar factors for Q4_0 and Q4_K. They raise the unweighted RMS error
// by 1 to 4 %, but lower the loss of the model Yardling (docs/quantization.md).
#pragma once

#include <cstdint>

#include "quant/formats.h"

namespace switchyard {

struct Int4Scale {
  float scale = 1.0f;        // representable in bfloat16; may be negative if symmetric
  uint8_t zero = kInt4Zero;  // 0..15; kInt4Zero if symmetric
};

// Finds scales and zero points for finite x [k] in groups of `group` columns, where w = (code -
// zero) · scale and k > 0. The last group may be short. `out` has one element for each group. Tries
// eight pairs of a zero point and a scale for each group, and takes the scale of least weighted
// squared error for the codes of the best pair. Rounding the weights by that scale lowers the error
// further. A symmetric group may have a negative scale: then the weight of largest magnitude has
// the code of -8 steps. Bit-identical on every CPU. Thread-safe.
void FindInt4Scales(const float* x, int64_t k, int64_t group, bool symmetric, Int4Scale* out);

// Returns the e8m0 code of the exponent for finite x [kMxfp4BlockSize]. Compares two exponents:
// that of the OCP specification (microscaling 1.0, 6.3), which clamps the largest magnitudes, and
// the next one. Bit-identical on every CPU. Thread-safe.
uint8_t FindMxfp4Scale(const float* x);

}  // namespace switchyard
