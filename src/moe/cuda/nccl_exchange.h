// Token rows between GPUs of several hosts, over NCCL: deepep's exchange where no memory is shared.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/device/cuda/nccl_group.h"
#include "comm/device/cuda/peer_memory.h"
#include "moe/cuda/row_exchange.h"
#include "moe/placement.h"

namespace switchyard::cuda {

// Rows are put together for each rank, sent, and found there as Exchange has them; so are outputs
// on the way back. Rows, their order and the sums have the same bits as over peer memory.
//
// The host must say how long each message is, and only the device knows. There are two ways, chosen
// by what all ranks know of the batch (its longest rank), so that they choose alike:
// - Fixed: every rank is sent as many rows as the longest rank has tokens, and gets as many returns
//   as these could have slots. No host waits, and it can be recorded; but of R ranks' returns about
//   one in R is worth sending. For low latency, for batches that may be recorded, and for those
//   where all of it is less than what the network carries while a host waits (kNcclSmallBytes).
// - Counted: numbers of rows first, with their tags; EndDispatch waits for them on the host, and
//   exactly the rows follow. Returns go in pieces of what a box holds.
// Error kTimeout or kPeer of that wait: NcclWatch. There is no mask of active ranks: NCCL's groups
// do without nobody.
class NcclExchange : public RowExchange {
 public:
  static size_t PeerBytes(const ExchangeConfig& config);  // what the constructor allocates
  // The current device's; all ranks together, since connections are opened. `memory`: of this rank,
  // where its peers need not reach it. `group`: of the config's ranks.
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
