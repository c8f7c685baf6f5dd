// AVX512_BF16 kernels for bfloat16 products. Each is single-threaded and does not allocate.
#pragma once

#include <cstdint>

#include "train/math/kernel_table.h"

namespace switchyard::train {

// A pair is two bfloat16 numbers in the bits of a float, the first one in the upper half. The float
// type is only storage.
struct PairLeaves {
  // Like KernelTable::multiply, with A [m, k] and B [k, n] of pairs.
  void (*multiply)(const ProductTask&);
  // For each of n rows of d elements with stride `row`: out[q] = (in[2 q], in[2 q + 1]), q in
  // [0, (d + 1) / 2). An unpaired last element is paired with zero. A row may be rounded in place.
  void (*round_rows)(const float* in, int64_t row, int64_t n, int64_t d, float* out,
                     int64_t out_row);
  // For each pair of consecutive rows, of n rows of d elements: out[j] = (first[j], second[j]) for
  // j in [0, d), zero-padded to a multiple of kPanel. An unpaired last row is paired with zeros.
  void (*pair_rows)(const float* in, int64_t row, int64_t n, int64_t d, float* out,
                    int64_t out_row);
};

namespace avx512 {
extern const PairLeaves kPairLeaves;
}

}  // namespace switchyard::train
