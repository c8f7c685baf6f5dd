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

// One side of a product in a ring of stages: descriptors of its tiles, of which only the low word
// is worked out for each. What a warpgroup does between two products is what the matrix unit may
// have to wait for.
class Operand {
 public:
  // `tile`: of stage 0. All threads of a warp have the same.
  __device__ __forceinline__ explicit Operand(ptx::Place tile)
      : low_(__shfl_sync(~0u, static_cast<uint32_t>(ptx::MatrixDescriptor(ptx::Held(tile))), 0)) {}
  // Of the tile that many bytes further on, a multiple of 1024.
  __device__ __forceinline__ uint64_t After(uint32_t bytes) const {
    return ptx::MatrixDescriptorOf(low_ + bytes / 16);
  }

 private:
  uint32_t low_;
};

// One step along K, 128 bytes of it: starts products, which end some time after a MultiplyWait.
// Operands are descriptors.
template <bool kFp8, int kCount>
__device__ __forceinline__ void StartMultiply(uint64_t a, uint64_t b, bool add,
                                              float (&d)[kCount]) {
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
