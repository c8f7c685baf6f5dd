// The fold of partial results that attention with matrix units left in the scratch.
#pragma once

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_schedule.cuh"

namespace switchyard::cuda {

// What a kernel of attention with matrix units gets.
struct TiledAttention {
  AttentionLaunch launch;
  AttentionSchedule schedule;
  float2* states = nullptr;  // [slots, tile rows]: SoftmaxState
  float* parts = nullptr;    // [slots, tile rows, v_dim]
};

// Writes the rows whose keys were split among units of `p`; v_dim is a power of two, 64 to 512.
cudaError_t StartMergeOfParts(const TiledAttention& p, const StreamChain& chain);

}  // namespace switchyard::cuda
