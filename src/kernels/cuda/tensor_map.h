// Descriptions of matrices for the copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace switchyard::cuda {

// A row-major matrix of `element_bytes` (1: bytes, 2: bfloat16), of which boxes of box_rows ×
// box_columns are copied with the 128-byte swizzle; box_columns · element_bytes is at most 128.
// Error kResource where the driver refuses.
CUtensorMap MakeTensorMap(const void* data, int64_t rows, int64_t columns, int element_bytes,
                          int box_rows, int box_columns);

}  // namespace switchyard::cuda
