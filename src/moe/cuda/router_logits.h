// x · Wᵀ in float32 for a W of few rows: the router's logits, and the shared expert's gate.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/stream_chain.h"

namespace switchyard::cuda {

// Every product of unrounded float32 inputs, to about float32's precision: matrix units multiply
// bfloat16, of which three make a float32. A sum's order depends on k alone.
struct RouterLogitsParams {
  const float* x = nullptr;     // [m, k]
  const void* w = nullptr;      // [n, k]
  bool w_is_bf16 = false;       // else float32
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n]
  int64_t m = 0;
  int n = 0;
  int64_t k = 0;  // a multiple of 4
};
cudaError_t RouterLogits(const RouterLogitsParams& p, const StreamChain& chain);

}  // namespace switchyard::cuda
