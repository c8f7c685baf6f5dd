// Launch functions of the ops of recurrent layers (semantics: kernels/recurrent.h). They enqueue on
// `chain` and return the launch status; empty inputs launch nothing. `sequences` are in device
// memory, so a captured launch reads the spans that were uploaded last. A launch depends on m,
// num_sequences and `chunked` only. Internal to kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/recurrent.h"

namespace switchyard::cuda::ops {

// Begins after its predecessors, which may be on several streams (LinearGroup).
cudaError_t ShortConv(const kernels::ShortConvParams& p, const PdlStream& chain);
// cudaErrorInvalidValue if key_dim exceeds kMaxGpuKeyDim.
cudaError_t GatedDelta(const kernels::GatedDeltaParams& p, const PdlStream& chain);
// The chunked rows of all spans, whose q, k and gates are prepared: outputs, and the states after
// them in `to` and in copies. Needs the shared memory of Hopper. cudaErrorInvalidValue if key_dim
// exceeds kMaxChunkKeyDim, or without aligned scratch.
cudaError_t GatedDeltaChunks(const kernels::GatedDeltaParams& p, const PdlStream& chain);
cudaError_t GatedNorm(const kernels::GatedNormParams& p, const PdlStream& chain);

}  // namespace switchyard::cuda::ops
