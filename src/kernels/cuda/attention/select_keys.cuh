// Scores of the index, between the kernels that compute them (index_scores.cu) and the one that
// selects keys (select_keys.cu).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cuda/attention/attention_schedule.cuh"

namespace switchyard::cuda {

// Arguments of the kernels for the rows of one wave.
struct KeySelection {
  const float* q = nullptr;  // [rows of the batch, heads, head_dim], row stride ldq
  int64_t ldq = 0;
  const float* weights = nullptr;  // [rows of the batch, heads]
  const void* cache = nullptr;     // [places, head_dim] of kv_dtype
  int64_t stride = 0;              // elements from a place to the next one
  DType kv_dtype = DType::kF32;
  // Of entries: the positions of an entry, and the slots that share a place (kernels/compressed.h).
  // A key is then an entry, and its number is stored. ratio 0: keys, whose slots are stored.
  int ratio = 0, span = 1;
  int heads = 0, head_dim = 0, topk = 0;
  SequenceTable table;
  int32_t* selected = nullptr;      // [rows of the batch, topk]
  int32_t first_row = 0, rows = 0;  // the wave's rows
  uint32_t* scores = nullptr;       // [rows, most_keys] OrderOf(score); written if a row selects
  int64_t most_keys = 0;            // keys of the longest possible sequence

  // The number of keys that a row sees; 0 for a row of no sequence.
  __device__ int KeysOf(int row) const {
    const int sequence = table.row_sequence[row];
    if (sequence < 0) return 0;
    const int keys =
        table.kv_len[sequence] - table.rows[sequence] + row - table.row_begin[sequence] + 1;
    return ratio > 0 ? keys / ratio : keys;
  }
  __device__ int SlotOf(int sequence, int key) const { return SlotOfKey(table, sequence, key); }
  __device__ int PlaceOf(int sequence, int key) const {
    return ratio > 0 ? SlotOf(sequence, (key + 1) * ratio - 1) / span : SlotOf(sequence, key);
  }
  // What is stored for a selected key.
  __device__ int ResultOf(int sequence, int key) const {
    return ratio > 0 ? key : SlotOf(sequence, key);
  }
  __device__ uint32_t* ScoresOf(int row) const {
    return scores + int64_t{row - first_row} * most_keys;
  }
};

// A number with the order of the scores. 0 and −0 are equal, and NaN is the lowest.
__device__ __forceinline__ uint32_t OrderOf(float score) {
  if (score != score) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// max(0, x), but NaN stays NaN.
__device__ __forceinline__ float PositivePart(float x) { return x < 0.0f ? 0.0f : x; }

// Writes the scores of all keys of the wave's rows that have more than topk keys. `tiles`: on
// tensor cores, for a kBF16 cache and head_dim a multiple of 16; SelectKeys has the alignments.
cudaError_t StartIndexScores(const KeySelection& p, bool tiles, cudaStream_t stream);

}  // namespace switchyard::cuda
