// Token rows between the GPUs of one host, over peer memory: deepep's exchange on CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/device/cuda/peer_memory.h"
#include "moe/cuda/row_exchange.h"
#include "moe/placement.h"

namespace switchyard::cuda {

// What is behind PeerMemory, for tests and benches that lay out memory of their own: each rank's
// PeerBytes, zeroed, in numbers of the group.
struct ExchangePeers {
  PeerPointers memory;
  WaitLimit limit;
};

// Nothing waits on the host, launches depend on `tokens` and the configuration alone, so that all
// of it can be recorded in a CUDA graph and replayed: round numbers live in device memory. A rank
// masked out by `active` (device, [ranks] bytes, null: all) is neither sent to nor waited for, and
// its experts add nothing; the mask changes between batches, in the order of the stream, and on all
// ranks alike. Masked ranks miss rounds: who comes back needs exchanges that are made anew on all
// ranks.
//
// On Hopper kernels of these calls begin while the one before them in the stream still runs, so
// that outputs are added up while others are under way.
class Exchange : public RowExchange {
 public:
  static size_t PeerBytes(const ExchangeConfig& config);  // what the constructor allocates
  // The current device's; allocates of `memory`, so all ranks construct theirs in the same order.
  Exchange(const ExchangeConfig& config, const ExpertMap& experts, PeerMemory& memory);
  Exchange(const ExchangeConfig& config, const ExpertMap& experts, const ExchangePeers& peers);
  ~Exchange() override;

  void BeginDispatch(int slot, const Tokens& tokens, cudaStream_t stream) override;
  DispatchedRows EndDispatch(int slot, cudaStream_t stream) override;
  void BeginCombine(int slot, const void* outputs, const int32_t* position,
                    cudaStream_t stream) override;
  void EndCombine(int slot, float* y, cudaStream_t stream) override;

  void SetActive(const uint8_t* active);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::cuda
