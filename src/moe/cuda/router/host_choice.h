// Selection of replicas by a ReplicaChooser for tokens that are routed on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/cuda/runtime.h"
#include "moe/router/replica_chooser.h"

namespace switchyard::cuda {

// One per MoeState whose backend has a chooser. CPU ranks use the same chooser, so each algorithm
// has one implementation. It runs as a host function between two copies on the stream of the
// passes, and captured passes call it too. The rank's thread never waits for it.
//
// The chooser runs on a thread of the CUDA runtime. So a placement may change only after the stream
// has been synchronized.
class HostChoice {
 public:
  // `max_tokens`: of a round. `stream`: of the passes.
  HostChoice(ReplicaChooser& chooser, int64_t max_tokens, int top_k, cudaStream_t stream);
  HostChoice(const HostChoice&) = delete;
  HostChoice& operator=(const HostChoice&) = delete;

  // Enqueues the start of the pass with this number; calls that follow on the stream belong to it.
  // Not captured, because captured passes run with other numbers.
  void Begin(uint64_t pass, int micro_batch);
  // Enqueues the choice of replicas for `tokens` tokens in a layer. `logical`: their logical
  // experts [tokens, top_k], in device memory. `first_token`: as in RoundToChoose. Returns the
  // physical experts [tokens, top_k], in device memory.
  const int32_t* Choose(int layer, int64_t first_token, const int32_t* logical, int64_t tokens);

 private:
  struct Call {
    HostChoice* owner = nullptr;
    RoundToChoose round;  // argument of Choose; Run fills in the pass and micro-batch
    int64_t tokens = 0;
    bool once = false;  // not captured: freed when it has run
  };
  static void SetPass(void* call);
  static void Run(void* call);
  Call* MakeCall(const RoundToChoose& round, int64_t tokens);

  ReplicaChooser& chooser_;
  const int top_k_;
  const cudaStream_t stream_;
  const PinnedMemory host_;      // [2, max_tokens, top_k]: logical, then physical
  const DeviceMemory physical_;  // [max_tokens, top_k]
  // Calls that captured passes make. They exist as long as this object, which outlives the captured
  // passes.
  std::vector<std::unique_ptr<Call>> recorded_;
  // Used by the host functions, in stream order.
  uint64_t pass_ = 0;
  int micro_batch_ = 0;
  TopK logical_, chosen_;  // ids of the running call
};

}  // namespace switchyard::cuda
