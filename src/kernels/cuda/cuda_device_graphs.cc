#include "kernels/cuda/cuda_device_graphs.h"

#include "core/check.h"
#include "core/cuda/runtime.h"

namespace switchyard::cuda {

Graphs::~Graphs() { Clear(); }

void Graphs::Clear() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  by_key_.clear();
}

Graphs::Entry& Graphs::Find(uint64_t key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front();
  }
  if (entries_.size() == kMaxGraphs) {
    Check(cudaStreamSynchronize(stream_), "GPU execution");  // the evicted graph may still run
    if (entries_.back().graph != nullptr) cudaGraphExecDestroy(entries_.back().graph);
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({.key = key});
  by_key_[key] = entries_.begin();
  return entries_.front();
}

void Graphs::Run(uint64_t key, const std::function<void()>& pass) {
  CHECK(!recording_);
  const bool seen = by_key_.contains(key);
  if (!seen) {
    pass();
    Find(key);
    return;
  }
  Entry& entry = Find(key);
  if (entry.graph == nullptr) entry.graph = Record(pass);
  Check(cudaGraphLaunch(entry.graph, stream_), "graph launch");
}

cudaGraphExec_t Graphs::Record(const std::function<void()>& pass) {
  // Thread-local mode: other threads (other ranks) may allocate and synchronize during the capture.
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
        "begin of graph capture");
  cudaGraph_t graph = nullptr;
  recording_ = true;
  try {
    pass();
  } catch (...) {
    recording_ = false;
    cudaStreamEndCapture(stream_, &graph);
    cudaGetLastError();
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  recording_ = false;
  Check(cudaStreamEndCapture(stream_, &graph), "end of graph capture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  Check(error, "graph instantiation");
  return exec;
}

}  // namespace switchyard::cuda
