// Limits of MoE layers on GPUs (moe/cuda), and options that they do not support. Builds without
// CUDA have this information too, because `switchyard backends --markdown` prints it in its feature
// table.
#pragma once

#include "comm/mesh.h"
#include "moe/gpu_backends.h"
#include "moe/gpu_limits.h"
#include "moe/options.h"

namespace switchyard::cuda {

// Error kInvalid names the flag, or the size of the model, that MoE layers on GPUs do not support.
// In addition to CheckMoeValues (check_options.h).
void CheckGpuOptions(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                     const GpuMoeBackends& backends);

}  // namespace switchyard::cuda
