// Row order by expert: the index computation of pre-permute on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "moe/gpu_limits.h"

namespace switchyard::cuda {

constexpr int kOrderTile = 4096;  // slots per block

// Received rows, in segments. Segment s has rows [s · capacity, s · capacity + counts[s]).
struct RowSegments {
  int segments = 1;
  int64_t capacity = 0;  // stride between segments, in rows
  int64_t tokens = 0;    // maximum rows of one segment in this call
  // [segments], on the device; null: each segment has `tokens` rows.
  const int32_t* counts = nullptr;
};

// Output rows in the order (expert, segment, row, slot). The rows of each expert begin at a
// multiple of kGroupBlockRows.
struct RowOrder {
  int32_t* position = nullptr;  // [segments · capacity, k] output row of each slot, −1: none
  int32_t* offsets = nullptr;   // [experts + 1] first output row of each expert, including padding
  int32_t* counts = nullptr;    // [experts] rows per expert, without padding
  int32_t* block_groups = nullptr;  // [blocks] expert of each block of output rows, or −1
};

struct RowOrderParams {
  RowSegments in;
  const int32_t* ids = nullptr;  // [segments · capacity, k] local experts or −1
  int k = 0, experts = 0;
  int64_t blocks = 0;          // length of block_groups; must suffice for any routing
  int32_t* scratch = nullptr;  // scratch memory of RowOrderScratch(…) integers
  RowOrder out;
};
// Maximum number of output rows for `slots` slots, including padding; a multiple of
// kGroupBlockRows.
int64_t MaxOrderedRows(int64_t slots, int experts);
int64_t RowOrderScratch(int64_t slots, int experts);
// Deterministic: the order depends on ids only. One kernel of one block for few slots, otherwise
// three kernels.
cudaError_t OrderRows(const RowOrderParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
