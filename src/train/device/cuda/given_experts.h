// Routing replay on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace switchyard::train::gpu {

// Replaces ids [m, k] of tokens that have given experts [m, k], not all −1. Adds their number to
// counts[0], and to counts[1] the number of those whose own selection was the same set. All
// pointers are device memory.
cudaError_t UseGivenExperts(const int32_t* given, int64_t m, int k, int32_t* ids, int32_t* counts,
                            cudaStream_t stream);

}  // namespace switchyard::train::gpu
