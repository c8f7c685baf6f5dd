// What AVX512_BF16 implements for products in bfloat16: one task without threads or allocation.
#pragma once

#include <cstdint>

#include "train/math/leaves.h"

namespace switchyard::train {

// A pair is two bfloat16 in the bits of a float, the first in the upper half. Pairs are never
// computed with as floats.
struct PairLeaves {
  // As of Leaves, with A [m, k] and B [k, n] of pairs.
  void (*multiply)(const ProductTask&);
  // Each of n rows of d, `row` apart: out[q] = (in[2 q], in[2 q + 1]), q in [0, (d + 1) / 2); a
  // last one without a neighbour has zero. A row may be rounded in place.
  void (*round_rows)(const float* in, int64_t row, int64_t n, int64_t d, float* out,
                     int64_t out_row);
  // Each two of n rows of d: out[j] = (first[j], second[j]) for j in [0, d), then zeros up to a
  // multiple of kPanel. A last row without a neighbour has zeros.
  void (*pair_rows)(const float* in, int64_t row, int64_t n, int64_t d, float* out,
                    int64_t out_row);
};

namespace avx512 {
extern const PairLeaves kPairLeaves;
}

}  // namespace switchyard::train
