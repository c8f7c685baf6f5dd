// A part of the outputs that combine returns.
#pragma once

#include <cstdint>
#include <limits>

namespace switchyard::cuda {

// The outputs that one part of combine sends: those at positions [begin, end). If the pointer of a
// bound is set, kernels read that bound from device memory.
struct OutputRange {
  int32_t begin = 0, end = std::numeric_limits<int32_t>::max();
  const int32_t* begin_on_device = nullptr;
  const int32_t* end_on_device = nullptr;
  bool last = true;  // whether this is the last part of the batch
};

}  // namespace switchyard::cuda
