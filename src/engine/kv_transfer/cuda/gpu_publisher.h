// The kernel of MakeGpuPublisher.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace switchyard::cuda {

// Writes `value` to pinned host memory, after all earlier work of the stream.
cudaError_t StartStoreWord(uint64_t* word, uint64_t value, cudaStream_t stream);

}  // namespace switchyard::cuda
