// Cache of batches captured as CUDA graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>

namespace switchyard::cuda {

// Owned by a device, for its stream. Keeps the most recently used graphs (LRU).
class Graphs {
 public:
  explicit Graphs(cudaStream_t stream) : stream_(stream) {}
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // The first call with a key runs `pass` directly, so that ops allocate scratch and load kernel
  // modules. The second call captures it; later calls replay the graph. Exceptions of `pass`
  // propagate and leave nothing captured.
  void Run(uint64_t key, const std::function<void()>& pass);
  bool recording() const { return recording_; }
  void Clear();  // destroys all graphs; the stream must have finished with them

 private:
  static constexpr size_t kMaxGraphs = 64;
  struct Entry {
    uint64_t key = 0;
    cudaGraphExec_t graph = nullptr;  // null: not captured yet
  };

  Entry& Find(uint64_t key);  // inserts the key if it is new
  cudaGraphExec_t Record(const std::function<void()>& pass);

  cudaStream_t stream_;
  bool recording_ = false;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> by_key_;
};

}  // namespace switchyard::cuda
