// Experts of one rank among those of all ranks, on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/range.h"

namespace switchyard::train::gpu {

// All pointers are device memory. The functions enqueue work and return.

// Renumbers ids [count]: those of `experts` from 0, and all others become −1.
cudaError_t SelectLocalExperts(Range experts, int32_t* ids, int64_t count, cudaStream_t stream);

// to [count + 1]: the numbers of `counts` [count], then `last`.
cudaError_t StoreCounts(const int32_t* counts, int64_t count, int64_t last, float* to,
                        cudaStream_t stream);
// to [count]: the numbers of `from`, which are integers below 2^24.
cudaError_t ToIntegers(const float* from, int64_t count, int32_t* to, cudaStream_t stream);

}  // namespace switchyard::train::gpu
