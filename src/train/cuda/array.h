// Arguments that all training kernels share: arrays of float32 or bfloat16, and the stream.
//
// The headers of this folder need no CUDA header. Their functions enqueue work on a stream and
// return; all pointers are device memory, unless a comment states otherwise. A function throws
// Error kInvalid for a shape or alignment that it does not support, and kResource if a launch
// fails. Errors of kernels appear at a later call that waits. Any thread may call them; the current
// GPU must be the one of the arrays. Nothing is allocated.
//
// Every sum has an order that depends on the sizes only. So equal calls give equal bits.
#pragma once

#include <cstdint>

#include "core/dtype.h"

struct CUstream_st;  // CUDA's own name: cudaStream_t is a pointer to it

namespace switchyard::train::gpu {

using Stream = CUstream_st*;  // equals cudaStream_t

// Elements that a kernel reads, in float32 or bfloat16. Kernels compute in float32 in both cases.
struct ConstArray {
  const void* data = nullptr;
  bool bf16 = false;

  ConstArray() = default;
  // NOLINTBEGIN(google-explicit-constructor): the pointer's type states the format.
  ConstArray(const float* values) : data(values) {}
  ConstArray(const BF16* values) : data(values), bf16(true) {}
  // NOLINTEND(google-explicit-constructor)

  // The array that begins at element `index`.
  ConstArray At(int64_t index) const {
    ConstArray part = *this;
    part.data = static_cast<const char*>(data) + index * (bf16 ? 2 : 4);
    return part;
  }
};

// Elements that a kernel writes, rounded to nearest even if they are bfloat16.
struct Array {
  void* data = nullptr;
  bool bf16 = false;

  Array() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  Array(float* values) : data(values) {}
  Array(BF16* values) : data(values), bf16(true) {}
  operator ConstArray() const {
    ConstArray same;
    same.data = data;
    same.bf16 = bf16;
    return same;
  }
  // NOLINTEND(google-explicit-constructor)

  Array At(int64_t index) const {
    Array part = *this;
    part.data = static_cast<char*>(data) + index * (bf16 ? 2 : 4);
    return part;
  }
};

}  // namespace switchyard::train::gpu
