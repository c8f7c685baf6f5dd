// Per-GPU opt-in for kernels with more than 48 KB of shared memory.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace switchyard::cuda {

// One static instance per kernel; the first call on a GPU sets the kernel's attribute on that GPU.
class SharedMemoryOptIn {
 public:
  template <typename Function>
  cudaError_t On(int device, Function kernel, int shared_bytes) {
    const uint64_t bit = uint64_t{1} << (device % 64);
    if (done_.load(std::memory_order_relaxed) & bit) return cudaSuccess;
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error == cudaSuccess) done_.fetch_or(bit, std::memory_order_relaxed);
    return error;
  }

 private:
  std::atomic<uint64_t> done_ = 0;
};

}  // namespace switchyard::cuda
