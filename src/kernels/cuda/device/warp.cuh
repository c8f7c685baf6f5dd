// Reductions over the 32 lanes of a warp. All lanes call them and get the same value. The order of
// the additions depends on nothing but the lanes, so equal inputs give equal bits.
#pragma once

#include <cuda_runtime.h>

namespace switchyard::cuda {

// T: float, double or an integer.
template <typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

// T: float, double or an integer. A NaN is ignored, unless all lanes have one.
template <typename T>
__device__ __forceinline__ T WarpMax(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    x = max(x, __shfl_xor_sync(~0u, x, distance));
  return x;
}

}  // namespace switchyard::cuda
