// The exchange of token rows between ranks with different experts: serving's dispatcher (src/moe).
//
// Training needs each slot's output at the token's own rank, because the gradient of its router
// weight is dy · output. So the outputs return unweighted, one row for each (token, slot)
// (Dispatcher::EndCombineBySlot). The gradient of combine is a dispatch with the forward routing
// (BeginDispatchAgain), whose rows are dy. The gradient of dispatch is a combine. The rank of an
// expert multiplies dy by the router weight, so each row is sent with its k weights. Elements are
// float32, or float64 for gradient checks: the dispatcher moves them as opaque 32-bit words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "core/parallel.h"
#include "model/config.h"
#include "moe/dispatchers/dispatcher.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/placement/placement.h"

namespace switchyard::train {

// The ranks of an expert-parallel group.
struct ExpertRanks {
  int rank = 0, size = 1;
  Dispatcher* dispatcher = nullptr;  // null: a single rank
};

struct ExpertExchangeOptions {
  int64_t tokens = 0;                    // maximum tokens of a rank in a micro-batch
  size_t element_bytes = sizeof(float);  // bytes of an element of activations
  // Maximum number of micro-batches between dispatch and combine at the same time. The schedules of
  // src/schedule use at most two.
  int in_flight = ExchangeSlots::kSlots;
  // --exchange sync: ranks exchange rows pairwise, and each exchange blocks.
  bool synchronous = false;
};

// Owned by the rank; all MoE layers of the rank use the same object. Used by the rank's thread
// only.
class ExpertExchange {
 public:
  // `group`: world ranks, this one included. Allocates symmetric memory, so every rank of the world
  // must construct its objects in the same order. Allocates nothing for a group of one rank, or for
  // a model without experts. `pool` is borrowed.
  ExpertExchange(SymmetricMemory& memory, std::vector<int> group, const ModelConfig& config,
                 const ExpertExchangeOptions& options, ThreadPool& pool);
  // Bytes that the exchange allocates in each rank's arena.
  static size_t BytesPerRank(int group_size, const ModelConfig& config,
                             const ExpertExchangeOptions& options);

  const ExpertRanks& ranks() const { return ranks_; }

 private:
  std::unique_ptr<const ExpertMap> experts_;
  std::unique_ptr<Dispatcher> dispatcher_;
  ExpertRanks ranks_;
};

}  // namespace switchyard::train
