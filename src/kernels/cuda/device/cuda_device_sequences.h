// What captured batches need on the device: the cache of graphs and a batch's sequence table.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/cuda_device_weights.h"
#include "kernels/device.h"

namespace switchyard::cuda {

// Cache of batches captured as CUDA graphs. Owned by a device, for its stream. Keeps the most
// recently used graphs (LRU).
class Graphs {
 public:
  // `synchronize` waits for the stream, before a graph that may still run is destroyed.
  Graphs(cudaStream_t stream, std::function<void()> synchronize)
      : stream_(stream), synchronize_(std::move(synchronize)) {}
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // The first call with a key runs `pass` directly, so that ops allocate scratch and load kernel
  // modules, unless `key` is a variant of one that has been run (Device::kVariant). The second call
  // captures it; later calls replay the graph. Exceptions of `pass`
  // propagate and leave nothing captured.
  void Run(uint64_t key, const std::function<void()>& pass);
  bool recording() const { return recording_; }
  void Clear();  // destroys all graphs; the stream must have finished with them

 private:
  static constexpr size_t kMaxGraphs = 128;
  struct Entry {
    uint64_t key = 0;
    cudaGraphExec_t graph = nullptr;  // null: not captured yet
  };

  Entry& Find(uint64_t key);  // inserts the key if it is new
  cudaGraphExec_t Record(const std::function<void()>& pass);

  const cudaStream_t stream_;
  const std::function<void()> synchronize_;
  bool recording_ = false;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> by_key_;
};

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
  // Memory for one upload: page-locked, or `large_` if it exceeds a staging segment.
  int32_t* HostMemory(size_t bytes);
  // Enqueues the upload of all `bytes` bytes of the last HostMemory.
  void Upload(int32_t* to, const int32_t* from, size_t bytes);
  // Finds the page tables of a batch.
  void FindPageTables(std::span<const kernels::SequenceSpan> sequences, int32_t page_size);
  // Enqueue the uploads of the branches and of the page tables.
  void SetBranches(std::span<const kernels::SequenceSpan> sequences);
  void SetPages(int64_t width);

  struct PageTable {
    const int32_t* pages = nullptr;  // [count]
    int64_t count = 0;
  };

  const int64_t max_tokens_, max_sequences_, max_pages_, max_branch_, max_page_tables_;
  Staging& staging_;
  const Graphs& graphs_;
  const cudaStream_t stream_;
  DeviceMemory columns_;  // row_begin, rows, kv_len [max_sequences], row_sequence [max_tokens]
  DeviceMemory pages_;    // [max_page_tables, max_pages]
  // [max_sequences, kBranchHeader + max_branch], SequenceTable::branches; empty if max_branch is 0.
  DeviceMemory branches_;
  std::vector<int32_t> large_;
  SequenceTable table_;
  // Of the batch that is being set: its page tables, and the number of each sequence's table.
  std::vector<PageTable> page_tables_;
  std::vector<int32_t> table_of_;  // [sequences]
};

}  // namespace switchyard::cuda
