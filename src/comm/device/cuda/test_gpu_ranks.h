// Ranks of a test. Each rank is a thread with a GPU. GPUs are assigned round-robin, so several
// ranks may share a GPU.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/cuda/peer_memory.h"
#include "core/cuda/runtime.h"

namespace switchyard::cuda {

struct GpuRank;

struct GpuRanks {
  MeshShape shape;
  size_t peer_bytes = size_t{32} << 20, scratch_bytes = size_t{32} << 20;
  std::chrono::milliseconds timeout{20'000};
  int ranks_per_host = 0;                           // simulated hosts; 0: one host
  std::chrono::milliseconds host_timeout{300'000};  // timeout of host-side waits

  void Run(const std::function<void(GpuRank&)>& body) const;
};

// While a peer's kernel waits for this rank's kernel on the same GPU, this rank must not allocate
// or free memory. These calls synchronize the whole GPU, so both ranks would deadlock. Therefore
// everything is allocated here, before any rank begins. A copy must not be enqueued after a waiting
// kernel either: it would block the copies of all ranks.
struct GpuRank {
  GpuRank(std::shared_ptr<SharedArena> arena, const GpuRanks& ranks, int rank_in)
      : rank((UseDevice(rank_in % DeviceCount()), rank_in)),
        comm(RankComm::Create(std::move(arena), ranks.shape, rank_in, {ranks.host_timeout})),
        scratch(ranks.scratch_bytes),
        memory(*comm, ranks.peer_bytes, ranks.timeout, ranks.ranks_per_host) {}

  template <typename T>
  void Fill(void* to, const std::vector<T>& from) const {
    Check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice,
                          stream.get()),
          "copy to the GPU");
    stream.Synchronize();
  }
  template <typename T>
  std::vector<T> Read(const void* from, size_t count) const {
    std::vector<T> to(count);
    stream.Synchronize();
    Check(cudaMemcpyAsync(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream.get()),
          "copy from the GPU");
    stream.Synchronize();
    memory.CheckTimeouts();
    return to;
  }

  int rank;
  std::unique_ptr<RankComm> comm;
  Stream stream;
  DeviceMemory scratch;
  PeerMemory memory;  // destroyed first: a collective
};

// A CUDA graph of the work that `body` enqueues on the rank's stream. All members construct and
// destroy their graphs at the same time, as they do with GpuRank.
class CapturedGraph {
 public:
  CapturedGraph(GpuRank& gpu, const std::function<void()>& body) : gpu_(gpu) {
    Check(cudaStreamBeginCapture(gpu.stream.get(), cudaStreamCaptureModeThreadLocal), "recording");
    body();
    Check(cudaStreamEndCapture(gpu.stream.get(), &graph_), "recording");
    Check(cudaGraphInstantiate(&replay_, graph_, 0), "recording");
    Check(cudaGraphUpload(replay_, gpu.stream.get()), "recording");
    gpu.stream.Synchronize();
    gpu.comm->tp->Barrier("recorded");
  }
  ~CapturedGraph() {
    cudaGraphExecDestroy(replay_);
    cudaGraphDestroy(graph_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  void Launch() const { Check(cudaGraphLaunch(replay_, gpu_.stream.get()), "replay"); }

 private:
  GpuRank& gpu_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t replay_ = nullptr;
};

inline void GpuRanks::Run(const std::function<void(GpuRank&)>& body) const {
  RunRankThreads(shape.world(), RankComm::BytesPerRank(shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   GpuRank gpu(std::move(arena), *this, rank);
                   body(gpu);
                 });
}

inline std::vector<float> Slice(const std::vector<float>& v, size_t begin, size_t count) {
  return {v.begin() + static_cast<ptrdiff_t>(begin),
          v.begin() + static_cast<ptrdiff_t>(begin + count)};
}

}  // namespace switchyard::cuda
