// What the GEMM kernels share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/gemm_problem.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace switchyard::cuda {

// Where a thread stands in the ring of stages between the copy engine and the matrix units.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <bool kFp8, int kCount>
__device__ __forceinline__ void Multiply(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  if constexpr (kFp8) {
    ptx::MultiplyFp8(d, a, b, add);
  } else {
    ptx::MultiplyBf16(d, a, b, add);
  }
}

// One step along K, 128 bytes of it: starts products, which end some time after a MultiplyWait.
template <bool kFp8, int kCount>
__device__ __forceinline__ void StartMultiply(const uint8_t* a_tile, const uint8_t* b_tile,
                                              bool add, float (&d)[kCount]) {
  const uint64_t a = ptx::MatrixDescriptor(a_tile), b = ptx::MatrixDescriptor(b_tile);
  ptx::PinRegisters(d);
  ptx::MultiplyFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) Multiply<kFp8>(d, a + 2 * i, b + 2 * i, add || i > 0);
  ptx::MultiplyCommit();
  ptx::PinRegisters(d);
}

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace switchyard::cuda
