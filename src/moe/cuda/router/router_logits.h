// x · Wᵀ in float32 for a W with few rows: router logits, and the shared expert's gate.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/stream_chain.h"

namespace switchyard::cuda {

// Multiplies float32 inputs, without rounding them, to about float32 precision. Tensor cores
// multiply bfloat16, so each float32 is split into three bfloat16 parts. The reduction order
// depends on k only.
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
cudaError_t RouterLogits(const RouterLogitsParams& p, const PdlStream& chain);

}  // namespace switchyard::cuda
