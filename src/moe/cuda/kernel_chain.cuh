// Kernels that follow one another closely, and words in shared memory that warps hand over.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernel_chain.cuh"

namespace switchyard::cuda {

// What the warp wrote before is seen, block-wide, by who sees the word.
__device__ __forceinline__ void ReleaseInBlock(uint32_t* word, uint32_t value) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(word))),
               "r"(value)
               : "memory");
}
__device__ __forceinline__ uint32_t AcquireInBlock(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
               : "=r"(value)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(word)))
               : "memory");
  return value;
}

}  // namespace switchyard::cuda
