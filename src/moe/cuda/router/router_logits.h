// x · Wᵀ in float32 for a W with few rows: router logits, and the shared expert's gate.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "moe/gpu_limits.h"

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

// The slots of a dispatched shared expert (--enable-deepep-waterfill).

struct SharedSlotsParams {
  const int32_t* ids = nullptr;    // [tokens, k] physical experts or −1
  const float* weights = nullptr;  // [tokens, k]
  // [tokens] the shared expert's gate before its sigmoid; null: weight 1.
  const float* gates = nullptr;
  const int32_t* owners = nullptr;  // [num_physical] the EP rank of each physical expert
  int64_t tokens = 0;
  int k = 0;
  int ranks = 1, rank = 0;  // size of the EP group (at most kMaxExchangeRanks), and this rank
  // The shared expert on rank r is physical expert first_shared + r.
  int32_t first_shared = 0;
  int32_t* wide_ids = nullptr;  // [tokens, k + 1]
  float* wide_weights = nullptr;
};

// Appends to every token a slot for the shared expert of one rank. This makes the numbers of rows
// of the ranks, routed and shared, as even as possible for these tokens. The numbers equal those of
// AppendSharedSlots on CPUs (moe/router/physical_choice.h). Ties go to `rank` first. The rank
// chosen for a single token may differ from the CPU, which changes no output.
cudaError_t AppendSharedSlots(const SharedSlotsParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
