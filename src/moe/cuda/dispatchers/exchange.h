// Dispatch and combine between the GPUs of one host over peer memory: the deepep backend on CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/device/cuda/peer_memory.h"
#include "moe/cuda/dispatchers/row_exchange.h"
#include "moe/placement/placement.h"

namespace switchyard::cuda {

// Peer memory that the caller allocates, for tests and benchmarks. It has one area for each rank,
// indexed by rank in the group. An area has Exchange::PeerBytes() bytes, which are zero.
struct ExchangePeers {
  PeerPointers memory;
  WaitLimit limit;
};

// No call waits on the host, launches depend only on `tokens` and the configuration, and round
// numbers live in device memory. So the exchange can be captured in a CUDA graph and replayed.
// `active` (device, [ranks] bytes, null: all) masks out ranks. The exchange neither sends to a
// masked rank nor waits for it, and the experts of that rank contribute nothing. The mask changes
// between batches, in stream order, and in the same way on all ranks. Masked ranks miss rounds, so
// their round numbers differ. To readmit a rank, all ranks must construct new exchanges.
//
// On Hopper, the kernels of an exchange start while the preceding kernel in the stream still runs,
// so that combine sums outputs while other outputs are in flight.
class Exchange : public RowExchange {
 public:
  static size_t PeerBytes(const ExchangeConfig& config);  // bytes that the constructor allocates
  // Constructed for the current device. Allocates from `memory`: all ranks construct theirs in the
  // same order.
  Exchange(const ExchangeConfig& config, const ExpertMap& experts, PeerMemory& memory);
  Exchange(const ExchangeConfig& config, const ExpertMap& experts, const ExchangePeers& peers);
  ~Exchange() override;

  bool overlaps() const override { return true; }
  void BeginDispatch(int slot, const Tokens& tokens, cudaStream_t stream) override;
  DispatchedRows EndDispatch(int slot, cudaStream_t stream) override;
  void BeginCombine(int slot, const void* outputs, const int32_t* position,
                    cudaStream_t stream) override;
  bool combines_in_parts() const override { return true; }
  void BeginCombinePart(int slot, const void* outputs, const int32_t* position,
                        const OutputRange& range, cudaStream_t stream) override;
  void EndCombine(int slot, float* y, cudaStream_t stream) override;

  void SetActive(const uint8_t* active);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::cuda
