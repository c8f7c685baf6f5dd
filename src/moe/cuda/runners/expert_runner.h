// The built-in expert computation of a rank on its GPU.
#pragma once

#include <memory>

#include "moe/cuda/runners/gpu_runner.h"

namespace switchyard::cuda {

// Writes y [tokens, H] float32: the output of the only expert of `shared` for x [tokens, H].
void RunSharedExpert(const DeviceExperts& shared, const ExpertActivation& activation,
                     const float* x, int64_t tokens, float* y, ProductBuffers& buffers,
                     const PdlStream& chain);

}  // namespace switchyard::cuda
