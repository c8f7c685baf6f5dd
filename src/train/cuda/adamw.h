// AdamW over flat arrays, and the sum of squares for the gradient norm. The results have the bits
// of train/optimizer/adamw.h.
#pragma once

#include <cstdint>

#include "train/cuda/array.h"

namespace switchyard::train::gpu {

// Factors that are constant within one step; computed on the host in double, then rounded.
struct AdamWFactors {
  float keep = 1;   // 1 - rate · decay
  float scale = 1;  // factor of the gradients
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float step = 0;     // rate / (1 - beta1^t)
  float unbias2 = 0;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
};
// `step`: counted from 1.
AdamWFactors MakeAdamWFactors(double rate, double decay, double beta1, double beta2, double epsilon,
                              int64_t step, double gradient_scale);

struct AdamWParams {
  int64_t count = 0;
  float* value = nullptr;     // master weights
  float* gradient = nullptr;  // set to zero
  float *first = nullptr, *second = nullptr;
  BF16* rounded = nullptr;  // bfloat16 copy of the new values; null: none
  AdamWFactors factors;
  // [1] multiplies factors.scale: a clip factor that was computed on the device. Null: 1.
  const float* scale = nullptr;
};
void AdamWStep(const AdamWParams& p, Stream stream);

// sums[b] = Σ x² over block b of Shards::kBlock (16384) elements, in double and in the order of the
// CPU. Add the blocks of a tensor in order on the host for its squared norm. sums [⌈count /
// 16384⌉].
void BlockSumsOfSquares(const float* x, int64_t count, double* sums, Stream stream);

}  // namespace switchyard::train::gpu
