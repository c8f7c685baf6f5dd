// The slots of a dispatched shared expert (--enable-deepep-waterfill).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "moe/gpu_limits.h"

namespace switchyard::cuda {

struct SharedSlotsParams {
  const int32_t* ids = nullptr;    // [tokens, k] physical experts or −1
  const float* weights = nullptr;  // [tokens, k]
  // [tokens] the shared expert's gate before its sigmoid; null: weight 1.
  const float* gates = nullptr;
  const int32_t* owners = nullptr;  // [num_physical] EP rank of each physical expert
  int64_t tokens = 0;
  int k = 0;
  int ranks = 1, rank = 0;      // size of the EP group (at most kMaxExchangeRanks), and this rank
  int32_t first_shared = 0;     // the physical expert of rank 0's shared expert; others follow it
  int32_t* wide_ids = nullptr;  // [tokens, k + 1]
  float* wide_weights = nullptr;
};

// Appends to every token a slot for the shared expert of one rank. The numbers of rows of these
// tokens, routed and shared, then are as even over the ranks as possible, as from AppendSharedSlots
// on CPUs (moe/router/physical_choice.h). Ties go to `rank` first. Which token goes to which of
// these ranks may differ from the CPU, and changes no output.
cudaError_t AppendSharedSlots(const SharedSlotsParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
