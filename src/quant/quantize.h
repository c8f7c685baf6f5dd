// Quantizes float32 matrices to the weight formats.
#pragma once

#include <cstdint>
#include <span>

#include "quant/weight_view.h"

namespace switchyard {

// Packing options of kInt4Group.
struct Int4Packing {
  int32_t group_size = 128;  // even; columns per scale; the last group of a row may be short
  bool symmetric = true;     // no zero points
  // For kInt4Group and kMxfp4. True: searches for scales with a small squared error
  // (scale_search.h), as loaders do. False: applies the rules listed at Quantize, which depend on
  // the extreme values only.
  bool search = false;
};

// Packs w [n, k], row-major, and returns a view of the whole matrix that owns its memory. Values
// round to the nearest representable value, ties to even. Values beyond the largest code saturate.
// Thread-safe.
//   kFp8Block, kFp8Channel: the scale maps the largest magnitude of the block or row to 448.
//   kInt8Channel: the scale maps the largest magnitude of the row to 127.
//   kInt4Group: if symmetric, the zero point is 8 and the scale maps the largest magnitude of a
//     group to 7.5 steps. Otherwise codes 0 to 15 span the range of the group's values and 0. k
//     must be even.
//   kMxfp4: the block exponent is that of the largest magnitude, minus 2 (OCP microscaling 1.0,
//     6.3); k must be a multiple of 32.
//   kNvfp4: the tensor scale maps the tensor's largest magnitude to 6 · 448, and is the reciprocal
//     of a float32, as compressed-tensors stores it. The block scale maps the block's largest
//     magnitude to 6; k must be a multiple of 16.
WeightView Quantize(WeightFormat format, std::span<const float> w, int64_t n, int64_t k,
                    const Int4Packing& int4 = {});

// Per-tensor scale of kNvfp4 for a tensor whose largest magnitude is `largest`.
float Nvfp4GlobalScale(float largest);

}  // namespace switchyard
