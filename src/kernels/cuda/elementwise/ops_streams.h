// Launch functions of residual streams (semantics: kernels/streams.h). They enqueue on `stream` and
// return the launch status; empty inputs launch nothing. Internal to kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/streams.h"

namespace switchyard::cuda::ops {

// cudaErrorInvalidValue for more than kMaxStreams streams. The sums have the order of those on
// CPUs.
cudaError_t CollapseStreams(const kernels::CollapseStreamsParams& p, cudaStream_t stream);
cudaError_t ExpandStreams(const kernels::ExpandStreamsParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda::ops
