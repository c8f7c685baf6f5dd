// Merge of the partial results that tensor core attention leaves in the scratch buffer.
#pragma once

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_schedule.cuh"

namespace switchyard::cuda {

// Arguments of the tensor core attention kernels and of the merge kernel.
struct TiledAttention {
  AttentionLaunch launch;
  AttentionSchedule schedule;
  float2* states = nullptr;  // [slots, tile rows]: SoftmaxState
  float* parts = nullptr;    // [slots, tile rows, v_dim]
};

// Writes the output rows whose keys were split among work items of `p`; v_dim is a power of two, 64
// to 512.
cudaError_t StartMergeOfParts(const TiledAttention& p, const PdlStream& chain);

}  // namespace switchyard::cuda
