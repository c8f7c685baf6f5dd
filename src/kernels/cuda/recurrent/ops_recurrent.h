// Launch functions of the ops of recurrent layers (semantics: kernels/recurrent.h). They enqueue on
// `stream` and return the launch status; empty inputs launch nothing. `sequences` are in device
// memory, so a captured launch reads the spans that were uploaded last. A launch depends on m and
// on num_sequences only. Internal to kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/recurrent.h"

namespace switchyard::cuda::ops {

cudaError_t ShortConv(const kernels::ShortConvParams& p, cudaStream_t stream);
// cudaErrorInvalidValue if key_dim exceeds kMaxGpuKeyDim.
cudaError_t GatedDelta(const kernels::GatedDeltaParams& p, cudaStream_t stream);
cudaError_t GatedNorm(const kernels::GatedNormParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda::ops
