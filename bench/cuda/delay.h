// Work of a given length on a GPU, in the place of kernels that a benchmark leaves out.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace switchyard::bench {

// Enqueues a kernel of one thread that ends after `nanoseconds` of the GPU's clock.
cudaError_t Delay(uint64_t nanoseconds, cudaStream_t stream);

}  // namespace switchyard::bench
