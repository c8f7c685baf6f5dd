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
  // out[q] = (in[2 q], in[2 q + 1]), q in [0, (n + 1) / 2); a last one without a neighbour has
  // zero.
  void (*round_row)(const float* in, int64_t n, float* out);
  // out[j] = (first[j], second[j]) for j in [0, n), then zeros up to kPanel. second null: zeros.
  void (*pair_rows)(const float* first, const float* second, int64_t n, float* out);
};

namespace avx512 {
extern const PairLeaves kPairLeaves;
}

}  // namespace switchyard::train
