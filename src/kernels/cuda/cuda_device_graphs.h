// Passes recorded as CUDA graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>

namespace switchyard::cuda {

// Belongs to a device and its stream. Keeps the graphs used last.
class Graphs {
 public:
  explicit Graphs(cudaStream_t stream) : stream_(stream) {}
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // The first call of a key runs `pass` as it is, so that what ops set up once (scratch, modules of
  // kernels) is there; the second records it; later ones replay. What `pass` throws comes through
  // and leaves nothing recorded.
  void Run(uint64_t key, const std::function<void()>& pass);
  bool recording() const { return recording_; }
  void Forget();  // all of them, once what the stream does with them has ended

 private:
  static constexpr size_t kMaxGraphs = 64;
  struct Entry {
    uint64_t key = 0;
    cudaGraphExec_t graph = nullptr;  // null: seen once
  };

  Entry& Find(uint64_t key);  // makes one where there is none
  cudaGraphExec_t Record(const std::function<void()>& pass);

  cudaStream_t stream_;
  bool recording_ = false;
  std::list<Entry> entries_;  // the one used last is first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> by_key_;
};

}  // namespace switchyard::cuda
