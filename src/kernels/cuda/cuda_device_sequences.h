// The device copy of a batch's sequence table.
#pragma once

#include <cstdint>
#include <span>

#include "core/cuda/runtime.h"
#include "kernels/cuda/cuda_device_staging.h"
#include "kernels/cuda/sequence_table.h"
#include "kernels/ops.h"

namespace switchyard::cuda {

// Buffers at fixed addresses, sized for the maximum. Owned by a device.
class Sequences {
 public:
  Sequences(int64_t max_tokens, int64_t max_sequences, int64_t max_pages);

  // Enqueues the upload and returns.
  void Set(std::span<const kernels::SequenceSpan> sequences, int32_t page_size, Staging& staging,
           cudaStream_t stream);
  const SequenceTable& table() const { return table_; }

 private:
  int64_t max_tokens_, max_sequences_, max_pages_;
  DeviceMemory columns_;  // row_begin, rows, kv_len [max_sequences], row_sequence [max_tokens]
  DeviceMemory pages_;    // [max_sequences, max_pages]
  SequenceTable table_;
};

}  // namespace switchyard::cuda
