// What MoE layers on GPUs (moe/cuda) do not support, and their limits. Builds without CUDA have
// these facts too: the feature table of `switchyard backends --markdown` prints them.
#pragma once

#include "comm/mesh.h"
#include "moe/gpu_backends.h"
#include "moe/gpu_limits.h"
#include "moe/options.h"

namespace switchyard::cuda {

// Error kInvalid names the flag or the model's size that MoE layers on GPUs do not support.
// Exchanges and runners are checked by the registry instead.
void CheckGpuOptions(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                     const GpuMoeBackends& backends);

}  // namespace switchyard::cuda
