// Kernels of a stream that begin before the one ahead of them has ended, on GPUs that can do that
// (Hopper's programmatic dependent launch); and words in shared memory that warps hand over.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace switchyard::cuda {

// The next kernel of the stream may begin once all blocks of this one have said so.
__device__ __forceinline__ void AllowNextKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Until the kernel ahead, and all before it, have ended and what they wrote can be read.
__device__ __forceinline__ void WaitForKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

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

// Launches a kernel that may begin early (`early`): it must call WaitForKernelBefore before it
// touches what earlier kernels write, and before it ends, so that who follows it follows them all.
template <typename... Params, typename... Args>
cudaError_t LaunchEarly(void (*kernel)(Params...), int blocks, int threads, size_t shared_bytes,
                        bool early, cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace switchyard::cuda
