// The device copy of a batch's sequence table.
#pragma once

#include <cstdint>
#include <span>

#include "core/cuda/runtime.h"
#include "kernels/cuda/cuda_device_graphs.h"
#include "kernels/cuda/cuda_device_staging.h"
#include "kernels/cuda/sequence_table.h"
#include "kernels/device.h"

namespace switchyard::cuda {

// The buffers have fixed addresses and the maximum size, because captured graphs read them.
class Sequences final : public kernels::PassSequences {
 public:
  // Uploads through `staging`, in the order of `stream`. Borrows `staging`, `graphs` and `stream`.
  Sequences(const kernels::CudaDeviceOptions& limits, Staging& staging, const Graphs& graphs,
            cudaStream_t stream);

  // Enqueues the upload and returns. Must not be called while a graph is captured.
  void Set(std::span<const kernels::SequenceSpan> sequences, int32_t page_size) override;
  const SequenceTable& table() const { return table_; }

 private:
  const int64_t max_tokens_, max_sequences_, max_pages_;
  Staging& staging_;
  const Graphs& graphs_;
  const cudaStream_t stream_;
  DeviceMemory columns_;  // row_begin, rows, kv_len [max_sequences], row_sequence [max_tokens]
  DeviceMemory pages_;    // [max_sequences, max_pages]
  SequenceTable table_;
};

}  // namespace switchyard::cuda
