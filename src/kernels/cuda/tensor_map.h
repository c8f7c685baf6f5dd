// Descriptions of matrices for the copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace switchyard::cuda {

// A row-major matrix of `element_bytes` (1: bytes, 2: bfloat16, 4: float32), of which boxes of
// box_rows × box_columns are copied; what a box has outside of the matrix is zeros. Bytes and
// bfloat16 are copied with the 128-byte swizzle, box_columns · element_bytes at most 128; float32
// without one. Rows are `stride` elements apart (0: columns), a multiple of 16 bytes.
// Error kResource where the driver refuses.
CUtensorMap MakeTensorMap(const void* data, int64_t rows, int64_t columns, int element_bytes,
                          int box_rows, int box_columns, int64_t stride = 0);
// The same matrix, bytes or bfloat16, in boxes of box_rows × 128 bytes, `planes` of which follow
// each other along the row and are copied at a time, one tile after the other: coordinates are 0,
// the row, and the number of the 128 bytes. columns · element_bytes is a multiple of 128.
CUtensorMap MakePlanesMap(const void* data, int64_t rows, int64_t columns, int element_bytes,
                          int box_rows, int planes, int64_t stride = 0);

}  // namespace switchyard::cuda
