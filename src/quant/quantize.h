// Packs float32 matrices into the weight formats.
#pragma once

#include <cstdint>
#include <span>

#include "quant/weight_view.h"

namespace switchyard {

// Packs w [n, k], row-major, and returns a view of all of it that owns its memory. Values round to
// the nearest of the format, ties to even, and saturate where the format does.
//   kFp8Block: a block's scale maps its largest magnitude to 448.
//   kMxfp4: a block's exponent is that of its largest magnitude, less 2 (OCP
//   microscaling 1.0, 6.3);
//     k must be a multiple of 32.
WeightView Quantize(WeightFormat format, std::span<const float> w, int64_t n, int64_t k);

}  // namespace switchyard
