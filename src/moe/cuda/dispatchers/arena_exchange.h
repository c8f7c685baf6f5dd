// Dispatch and combine between a GPU and experts on CPUs of the same host, through the shared arena
// of their ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "comm/device/cuda/host_link.h"
#include "moe/cuda/dispatchers/row_exchange.h"
#include "moe/dispatchers/builtin.h"
#include "moe/placement/placement.h"

namespace switchyard::cuda {

// The GPU's side of deepep's normal mode (moe/dispatchers/deepep.cc). The other ranks of the group
// have no tokens; each of them runs the Dispatcher of CPUs in this mode, with
// ExchangeSlots::Options::device_ranks. Batch n of slot s is use n of slot s of ExchangeSlots.
//
//   BeginDispatch  A kernel rounds each row once. It writes rows of the GPU's own experts to device
//                  memory, and rows of other experts to this rank's arena, once for all CPUs. It
//                  writes counts and routing to the arenas of the CPUs, then raises both of their
//                  flags. The second flag signals outputs, of which this rank sends none.
//   EndDispatch    Returns the rows of the own experts. They do not wait for a CPU.
//   EndCombine     A kernel waits for the outputs of all CPUs. The next one sums the slots of each
//                  token in slot order, from the own outputs and from the arena.
//
// Rows and outputs cross the link once. Kernels read the link with loads that are not cached.
//
// Reuse of a slot: all CPUs raise their outputs flags of batch n after they have read rows and
// routing of batch n. The kernels of EndCombine see these flags before the dispatch of batch n + 1
// writes. A CPU writes outputs of batch n + 1 after it has seen the rows of this batch, which this
// GPU dispatches after the sums of batch n.
//
// No call waits on the host, and round numbers are in device memory, so batches may be captured in
// CUDA graphs. One rank of the group is on a GPU, and it is the first one.
class ArenaExchange : public RowExchange {
 public:
  // `config`: of this rank, with rank 0, combine by slot, and at most as many batches in flight as
  // ExchangeSlots has slots. `arena`: of the same sizes. Allocates symmetric memory, as the
  // dispatchers of CPUs do.
  ArenaExchange(const ExchangeConfig& config, const DeepEpArena& arena, const ExpertMap& experts,
                HostLink& link);
  ~ArenaExchange() override;

  void BeginDispatch(int slot, const Tokens& tokens, cudaStream_t stream) override;
  // Of one source, this rank: rows [tokens], in token order. A row without an expert of this rank
  // has undefined elements, and all its ids are −1.
  DispatchedRows EndDispatch(int slot, cudaStream_t stream) override;
  // The arguments must stay valid until EndCombine has run.
  void BeginCombine(int slot, const void* outputs, const int32_t* position,
                    cudaStream_t stream) override;
  void EndCombine(int slot, float* y, cudaStream_t stream) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::cuda
