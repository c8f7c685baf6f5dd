// Arrays on the current GPU, for benchmarks of kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cuda/runtime.h"

namespace switchyard::bench {

// Error kResource if the allocation fails.
template <typename T>
struct DeviceArray {
  explicit DeviceArray(size_t n) {
    cuda::Check(cudaMalloc(&data, n * sizeof(T)), "memory of a benchmark");
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    cuda::CopyToDevice(data, from.data(), from.size() * sizeof(T), "upload of a benchmark");
  }
  ~DeviceArray() { cudaFree(data); }
  DeviceArray(const DeviceArray&) = delete;
  T* data = nullptr;
};

// Random numbers that depend on index and seed alone.
__device__ inline float Uniform(uint64_t index) {  // (0, 1]
  index ^= index >> 33;
  index *= 0xff51afd7ed558ccdULL;
  index ^= index >> 33;
  index *= 0xc4ceb9fe1a85ec53ULL;
  return (static_cast<float>(index >> 40) + 1.0f) / 16777216.0f;
}
__device__ inline float Normal(uint64_t index) {
  return sqrtf(-2.0f * logf(Uniform(2 * index))) * cospif(2.0f * Uniform(2 * index + 1));
}
__device__ inline void Set(__nv_fp8_e4m3* p, float x) { *p = __nv_fp8_e4m3(30.0f * x); }
__device__ inline void Set(__nv_bfloat16* p, float x) { *p = __float2bfloat16(x); }
__device__ inline void Set(float* p, float x) { *p = x; }
template <typename T>
__global__ void FillNormal(T* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    Set(p + i, Normal(i + seed));
}
// Fills the array with uniform random values in [−2, 2).
template <typename T>
__global__ void FillUniform(T* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    Set(p + i, 4.0f * Uniform(i + seed) - 2.0f);
}
static __global__ void FillScales(float* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    p[i] = 0.01f + 0.02f * Uniform(i + seed);
}

}  // namespace switchyard::bench
