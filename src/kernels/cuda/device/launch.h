// What launches of kernels need: a stream and its use of programmatic dependent launch (PDL),
// opt-in for shared memory, and TMA tensor maps.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace switchyard::cuda {

// Functions that take a PdlStream launch kernels with PDL (kernel_chain.cuh) if `early` is set.
// Other work on the same stream is fully ordered, so both kinds may be mixed.
struct PdlStream {
  // NOLINTNEXTLINE(google-explicit-constructor): a plain stream is a chain without PDL.
  PdlStream(cudaStream_t on, bool begins_early = false) : stream(on), early(begins_early) {}

  cudaStream_t stream;
  bool early;
};

// Per-GPU opt-in for kernels with more than 48 KB of shared memory.
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

// Tensor map of a row-major matrix with elements of `element_bytes` (1: bytes, 2: bfloat16, 4:
// float32) and boxes of box_rows × box_columns. Elements outside of the matrix read as zero. Bytes
// and bfloat16 use the 128-byte swizzle, with box_columns · element_bytes at most 128; float32 is
// not swizzled. Rows are `stride` elements apart (0: columns), a multiple of 16 bytes. Error
// kResource if the driver rejects the map.
CUtensorMap MakeTensorMap(const void* data, int64_t rows, int64_t columns, int element_bytes,
                          int box_rows, int box_columns, int64_t stride = 0);
// 3-D tensor map of a row-major matrix (bytes or bfloat16) with boxes of `planes` planes of
// box_rows × 128 bytes. Planes are adjacent along the row and are stored in shared memory as
// consecutive tiles. Coordinates: 0, the row, the index of the plane. columns · element_bytes is a
// multiple of 128.
CUtensorMap MakeTensorMap3d(const void* data, int64_t rows, int64_t columns, int element_bytes,
                            int box_rows, int planes, int64_t stride = 0);

// 3-D tensor map of bfloat16 vectors [outer, inner] of `columns` elements, with boxes of box_outer
// × box_inner × 64 elements, in the 128-byte swizzle. Strides in bytes, multiples of 16.
// Coordinates: the column, the inner and the outer index.
CUtensorMap MakeVectorTensorMap(const void* data, int64_t outer, int64_t inner, int64_t columns,
                                int64_t outer_stride, int64_t inner_stride, int box_outer,
                                int box_inner);

}  // namespace switchyard::cuda
