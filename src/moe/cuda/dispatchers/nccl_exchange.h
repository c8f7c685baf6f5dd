// Dispatch and combine between GPUs of several hosts over NCCL: the deepep backend without peer
// memory.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/device/cuda/nccl_group.h"
#include "comm/device/cuda/peer_memory.h"
#include "moe/cuda/dispatchers/row_exchange.h"
#include "moe/placement/placement.h"

namespace switchyard::cuda {

// Packs the rows for each rank, sends them, and stores them on the receiver in the same layout as
// Exchange. Combine packs and sends the outputs in the same way. Rows, their order and the sums are
// bit-identical to the exchange over peer memory.
//
// NCCL needs message sizes on the host, but only the device has them. There are two modes. All
// ranks derive the mode from the number of tokens of the longest rank (the rank with the most
// tokens in this batch), so they select the same mode:
// - Fixed: all messages have the maximum size. A rank sends every rank one row per token of the
//   longest rank, and receives one return for each slot that these rows could have. The host does
//   not wait, and the batch can be captured. With R ranks, about one in R of the returned rows is
//   useful. Used for low latency and for batches that may be captured. Also used if the network can
//   transfer all messages in the time of a host wait (kNcclSmallBytes).
// - Counted: sends row counts and metadata first. EndDispatch waits for them on the host and then
//   transfers exactly the valid rows. Returns are sent in pieces of the send buffer's size.
// A wait on the host throws kTimeout or kPeer (NcclWatch). There is no mask of active ranks,
// because NCCL groups need every rank.
class NcclExchange : public RowExchange {
 public:
  static size_t PeerBytes(const ExchangeConfig& config);  // bytes that the constructor allocates
  // Constructed for the current device. Construction opens connections, so all ranks construct at
  // the same time. `memory`: this rank's memory; peers do not access it. `group`: the ranks of
  // `config`.
  NcclExchange(const ExchangeConfig& config, const ExpertMap& experts, PeerMemory& memory,
               NcclGroup& group);
  ~NcclExchange() override;

  void BeginDispatch(int slot, const Tokens& tokens, cudaStream_t stream) override;
  DispatchedRows EndDispatch(int slot, cudaStream_t stream) override;
  void BeginCombine(int slot, const void* outputs, const int32_t* position,
                    cudaStream_t stream) override;
  void EndCombine(int slot, float* y, cudaStream_t stream) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::cuda
