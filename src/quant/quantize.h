// Packs float32 matrices into the weight formats.
#pragma once

#include <cstdint>
#include <span>

#include "quant/weight_view.h"

namespace switchyard {

// How kInt4Group is packed.
struct Int4Packing {
  int32_t group_size = 128;  // even; columns that share a scale; a row's last group may be short
  bool symmetric = true;     // no zero points
};

// Packs w [n, k], row-major, and returns a view of all of it that owns its memory. Values round to
// the nearest of the format, ties to even, and saturate where the format does. Any thread.
//   kFp8Block, kFp8Channel: a scale maps the largest magnitude of its block or row to 448.
//   kInt8Channel: a scale maps the row's largest magnitude to 127.
//   kInt4Group: symmetric, a group's largest magnitude to 7.5 steps around code 8; else codes 0 to
//     15 span the group's values and 0. k must be even.
//   kMxfp4: a block's exponent is that of its largest magnitude, less 2 (OCP
//   microscaling 1.0, 6.3);
//     k must be a multiple of 32.
//   kNvfp4: the tensor's scale maps its largest magnitude to 6 · 448, a block's scale its own to 6;
//     k must be a multiple of 16.
WeightView Quantize(WeightFormat format, std::span<const float> w, int64_t n, int64_t k,
                    const Int4Packing& int4 = {});

// The scale that kNvfp4 gives a tensor whose largest magnitude is `largest`.
float Nvfp4GlobalScale(float largest);

}  // namespace switchyard
