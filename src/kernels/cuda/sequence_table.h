// The sequences of a pass, on the device.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

// What Device::SetSequences uploaded; ops::SequenceSpan has the meaning of the columns. The arrays
// lie at fixed addresses, so that a recorded graph reads what the last upload left there: a launch
// may depend on num_sequences, num_rows and max_pages, which a graph's key stands for, never on
// kv lengths. Empty sequences (rows 0) may occur.
struct SequenceTable {
  const int32_t* row_begin = nullptr;     // [num_sequences]
  const int32_t* rows = nullptr;          // [num_sequences]
  const int32_t* kv_len = nullptr;        // [num_sequences]
  const int32_t* pages = nullptr;         // [num_sequences, max_pages]; behind the last page: 0
  const int32_t* row_sequence = nullptr;  // [num_rows]; −1: a row of no sequence
  int32_t num_sequences = 0;
  int32_t num_rows = 0;   // end of the last sequence's rows
  int32_t max_pages = 0;  // stride of `pages`, CudaDeviceOptions::max_pages: the same in all passes
  int32_t page_size = 1;
  // What the host knows of this pass. Not for launches that may be recorded, unless the key stands
  // for it.
  int32_t max_rows = 0;    // of the longest part
  int32_t max_kv_len = 0;  // of the longest sequence
};

}  // namespace switchyard::cuda
