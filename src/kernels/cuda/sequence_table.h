// A batch's sequence table in device memory.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

// The table that PassSequences::Set uploads; kernels::SequenceSpan documents the columns. The
// arrays have fixed addresses, so a captured graph reads the latest upload. A launch may depend on
// num_sequences, num_rows and max_pages, which are part of the graph's key, but never on KV
// lengths. Empty sequences (rows 0) are allowed.
struct SequenceTable {
  const int32_t* row_begin = nullptr;     // [num_sequences]
  const int32_t* rows = nullptr;          // [num_sequences]
  const int32_t* kv_len = nullptr;        // [num_sequences]
  const int32_t* pages = nullptr;         // [num_sequences, max_pages]; 0 after the last page
  const int32_t* row_sequence = nullptr;  // [num_rows]; −1: a row of no sequence
  int32_t num_sequences = 0;
  int32_t num_rows = 0;  // end of the last sequence's rows
  int32_t max_pages =
      0;  // stride of `pages`, CudaDeviceOptions::max_pages: the same in all batches
  int32_t page_size = 1;
  // Host-side facts about this batch. Captured launches must not depend on them unless they are
  // part of the graph's key.
  int32_t max_rows = 0;    // largest number of rows of a sequence
  int32_t max_kv_len = 0;  // largest KV length
};

}  // namespace switchyard::cuda
