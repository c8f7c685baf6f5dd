// The order of rows by expert: pre-permute's first half on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace switchyard::cuda {

constexpr int kMaxLocalExperts = 512;
constexpr int kOrderTile = 4096;  // slots that one block counts and places

// Rows as they arrived: segment s has rows [s · capacity, s · capacity + count of s).
struct RowSegments {
  int segments = 1;
  int64_t capacity = 0;             // from one segment's first row to the next one's
  int64_t tokens = 0;               // most rows of one segment in this call
  const int32_t* counts = nullptr;  // [segments], on the device; null: `tokens` each
};

// Output rows in the order (expert, segment, row, slot); each expert's begin on a multiple of
// kGroupBlockRows.
struct RowOrder {
  int32_t* position = nullptr;      // [segments · capacity, k] output row of each slot, −1: none
  int32_t* offsets = nullptr;       // [experts + 1] first output row of each expert, padded
  int32_t* counts = nullptr;        // [experts] rows of each, without padding
  int32_t* block_groups = nullptr;  // [blocks] expert of each kGroupBlockRows output rows, or −1
};

struct RowOrderParams {
  RowSegments in;
  const int32_t* ids = nullptr;  // [segments · capacity, k] local experts, −1: not here
  int k = 0, experts = 0;
  int64_t blocks = 0;          // of block_groups; enough for any routing of these counts
  int32_t* scratch = nullptr;  // RowOrderScratch(…) integers
  RowOrder out;
};
// Most output rows, padding included, of `slots` slots: a multiple of kGroupBlockRows.
int64_t MostOrderedRows(int64_t slots, int experts);
int64_t RowOrderScratch(int64_t slots, int experts);
// The order depends on ids alone. Few slots: one kernel of one block; else three.
cudaError_t OrderRows(const RowOrderParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
