// Selection of replicas by a ReplicaChooser for tokens that are routed on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/cuda/runtime.h"
#include "moe/router/physical_choice.h"

namespace switchyard::cuda {

// One per MoeState whose backend has a chooser. The chooser is the one of CPU ranks, so each
// algorithm has one implementation. It runs as a host function between two copies on the stream of
// the passes; captured passes call it too. The rank's thread never waits for it.
//
// The host function runs on a thread of the CUDA runtime. So a placement may change only after the
// stream has been synchronized.
class HostChoice {
 public:
  // `max_tokens`: maximum tokens of a round. `stream`: the stream of the passes.
  HostChoice(ReplicaChooser& chooser, int64_t max_tokens, int top_k, cudaStream_t stream);
  HostChoice(const HostChoice&) = delete;
  HostChoice& operator=(const HostChoice&) = delete;

  // Enqueues the start of the pass with number `pass`. Later calls of Choose on the stream belong
  // to this pass. Must not be captured, because a captured pass is replayed with other numbers.
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
    bool once = false;  // whether the call is not captured, so that it is freed after it has run
  };
  static void SetPass(void* call);
  static void Run(void* call);
  Call* MakeCall(const RoundToChoose& round, int64_t tokens);

  ReplicaChooser& chooser_;
  const int top_k_;
  const cudaStream_t stream_;
  const PinnedMemory host_;      // ids [2, max_tokens, top_k]: logical, then physical
  const DeviceMemory physical_;  // physical ids [max_tokens, top_k]
  // Arguments of the calls in captured passes. They exist as long as this object, which outlives
  // the captured passes.
  std::vector<std::unique_ptr<Call>> recorded_;
  // The following members are used by the host functions, in stream order.
  uint64_t pass_ = 0;
  int micro_batch_ = 0;
  TopK logical_, chosen_;  // ids of the running call
};

}  // namespace switchyard::cuda
