// What all training kernels use: loads and stores of float32 or bfloat16 elements, and launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/rounding.h"
#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "train/cuda/array.h"

namespace switchyard::train::gpu {

using switchyard::cuda::WarpMax;
using switchyard::cuda::WarpSum;

constexpr int kWarp = 32;

// Elements from a pair of bfloat16 in 32 bits, the first one in the lower half.
__device__ __forceinline__ float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float High(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ float LoadOne(const ConstArray& a, int64_t i) {
  return a.bf16 ? __uint_as_float(uint32_t{static_cast<const uint16_t*>(a.data)[i]} << 16)
                : static_cast<const float*>(a.data)[i];
}
__device__ __forceinline__ float LoadOne(const Array& a, int64_t i) {
  return a.bf16 ? __uint_as_float(uint32_t{static_cast<const uint16_t*>(a.data)[i]} << 16)
                : static_cast<const float*>(a.data)[i];
}
__device__ __forceinline__ void StoreOne(const Array& a, int64_t i, float x) {
  if (a.bf16) {
    static_cast<uint16_t*>(a.data)[i] = static_cast<uint16_t>(PackPair(x, 0.0f) & 0xffffu);
  } else {
    static_cast<float*>(a.data)[i] = x;
  }
}

// Four elements; i is a multiple of 4, and the array is aligned to four elements.
__device__ __forceinline__ float4 Load4At(const void* data, bool bf16, int64_t i) {
  if (!bf16) return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + i);
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(data) + i);
  return make_float4(Low(bits.x), High(bits.x), Low(bits.y), High(bits.y));
}
__device__ __forceinline__ float4 Load4(const ConstArray& a, int64_t i) {
  return Load4At(a.data, a.bf16, i);
}
__device__ __forceinline__ float4 Load4(const Array& a, int64_t i) {
  return Load4At(a.data, a.bf16, i);
}
__device__ __forceinline__ void Store4(const Array& a, int64_t i, float4 v) {
  if (a.bf16) {
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(a.data) + i) =
        make_uint2(PackPair(v.x, v.y), PackPair(v.z, v.w));
  } else {
    *reinterpret_cast<float4*>(static_cast<float*>(a.data) + i) = v;
  }
}

__device__ __forceinline__ float4 Add4(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 Scale4(float4 a, float s) {
  return make_float4(a.x * s, a.y * s, a.z * s, a.w * s);
}
__device__ __forceinline__ float4 Multiply4(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float Dot4(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
// v, rounded as Store4 rounds it.
__device__ __forceinline__ float4 Rounded4(float4 v, bool bf16) {
  if (!bf16) return v;
  const uint32_t low = PackPair(v.x, v.y), high = PackPair(v.z, v.w);
  return make_float4(Low(low), High(low), Low(high), High(high));
}

// Starts a kernel. `what` names it in errors. An empty grid starts nothing.
template <typename... Params, typename... Args>
void Launch(const char* what, void (*kernel)(Params...), dim3 grid, int threads,
            size_t shared_bytes, Stream stream, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  switchyard::cuda::Check(
      switchyard::cuda::LaunchWithPdl(kernel, grid, threads, shared_bytes, false, stream,
                                      std::forward<Args>(args)...),
      what);
}
inline dim3 Grid(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

}  // namespace switchyard::train::gpu
