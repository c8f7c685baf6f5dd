// Products of a router, whose weights stay float32: rounded logits would change the choice of
// experts.
#pragma once

#include <cstdint>

#include "train/cuda/array.h"

namespace switchyard::train::gpu {

// x [m, k] bfloat16, w [n, k] float32, logits [m, n] float32.
//
// With tensor cores (UsesTensorCores of products.h; n a multiple of 8), a float32 number is the sum
// of three bfloat16 numbers: the number rounded, and what the previous ones leave, rounded.
// Products of bfloat16 numbers are exact in float32. So one product with stacked parts gives the
// logits up to the rounding of float32 sums. Otherwise the plain kernel is used. `scratch`:
// RouterProductScratch(…) bytes, aligned to 16; not kept.
struct RouterProduct {
  int64_t m = 0, n = 0, k = 0;
  const BF16* x = nullptr;
  const float* w = nullptr;
  void* scratch = nullptr;
};
int64_t RouterProductScratch(int64_t m, int64_t n, int64_t k);

void RouterLogits(const RouterProduct& p, float* logits, Stream stream);
// dx [m, k] += dlogits · W; dw [n, k] += dlogitsᵀ · x. Two parts of each number are used, so the
// relative errors of products are below 2⁻¹⁶.
void RouterProductGradients(const RouterProduct& p, const float* dlogits, float* dx, float* dw,
                            Stream stream);

}  // namespace switchyard::train::gpu
