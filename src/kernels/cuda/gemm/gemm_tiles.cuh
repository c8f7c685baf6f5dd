// Pipeline state and wgmma helpers shared by the GEMM kernels.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/gemm/gemm_problem.h"

namespace switchyard::cuda {

// A thread's position in the ring of pipeline stages between TMA and wgmma.
struct PipelineState {
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
    ptx::WgmmaFp8(d, a, b, add);
  } else {
    ptx::WgmmaBf16(d, a, b, add);
  }
}

// Descriptors of one operand in the pipeline stages. Only the low word is computed per tile,
// because the tensor core may idle while a warpgroup works between two wgmmas.
class OperandDescriptors {
 public:
  // `tile`: the operand's tile of stage 0; the same for all threads of a warp.
  __device__ __forceinline__ explicit OperandDescriptors(ptx::SharedAddr tile)
      : low_(__shfl_sync(~0u, static_cast<uint32_t>(ptx::MatrixDescriptor(ptx::Pinned(tile))), 0)) {
  }
  // Descriptor of the tile that begins `bytes` bytes after `tile`; `bytes` is a multiple of 1024.
  __device__ __forceinline__ uint64_t After(uint32_t bytes) const {
    return ptx::MatrixDescriptorOf(low_ + bytes / 16);
  }

 private:
  uint32_t low_;
};

// Issues one step along K (128 bytes, four wgmmas), asynchronously; WgmmaWait waits for it.
// Operands are descriptors.
template <bool kFp8, int kCount>
__device__ __forceinline__ void IssueWgmma(uint64_t a, uint64_t b, bool add, float (&d)[kCount]) {
  ptx::PinRegisters(d);
  ptx::WgmmaFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) Multiply<kFp8>(d, a + 2 * i, b + 2 * i, add || i > 0);
  ptx::WgmmaCommit();
  ptx::PinRegisters(d);
}

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace switchyard::cuda
