// Elements of cached rows, and the rotation of the last elements of a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cuda/attention/key_codes.cuh"

namespace switchyard::cuda::entries {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(KeyCode x) { return FloatOfCode(x); }

__device__ __forceinline__ void Store(float* to, float x) { *to = x; }
__device__ __forceinline__ void Store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }
__device__ __forceinline__ void Store(__half* to, float x) { *to = __float2half_rn(x); }

// Element `c` of a row of `width` elements after the rotation of its last elements in interleaved
// pairs; back if `sign` is −1. `cos_sin` [rotary_dim]: of the position.
__device__ __forceinline__ float Rotated(const float* row, int c, int width, int rotary_dim,
                                         const float* cos_sin, float sign) {
  const int i = c - (width - rotary_dim);
  if (i < 0 || i / 2 >= rotary_dim / 2) return row[c];
  const float cos = cos_sin[i / 2], sin = sign * cos_sin[rotary_dim / 2 + i / 2];
  return i % 2 == 0 ? row[c] * cos - row[c + 1] * sin : row[c] * cos + row[c - 1] * sin;
}

// Calls run(T()) for the element type of a cache. Returns false for other dtypes.
template <typename Run>
bool WithElement(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kF32:
      run(float());
      return true;
    case DType::kBF16:
      run(__nv_bfloat16());
      return true;
    case DType::kF16:
      run(__half());
      return true;
    default:
      return false;
  }
}

}  // namespace switchyard::cuda::entries
