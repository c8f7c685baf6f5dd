// Layout of the exchange buffers in peer memory, and what the exchanges of this folder share.
#pragma once

#include <iterator>
#include <vector>

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "moe/cuda/dispatchers/exchange_launch.h"
#include "moe/cuda/dispatchers/row_exchange.h"
#include "moe/placement/placement.h"

namespace switchyard::cuda {

RowKind RowKindOf(RowFormat format);
// Returns the layout of one slot; `bytes` is a multiple of 256. Error kInvalid names the
// unsupported parameter.
ExchangeLayout LayoutOf(const ExchangeConfig& config);
// Device memory of one slot.
struct ExchangeSlotMemory {
  DeviceMemory state, words, before;  // of ExchangeBatch
};
ExchangeSlotMemory SlotMemoryOf(const ExchangeConfig& config);
// Arguments of the batches of a slot as far as `config` determines them. `experts`: PlacesOf
// `num_experts` experts. Borrows both memories. The layout, the buffers of the ranks, `limit` and
// `early` are not set.
ExchangeBatch BatchOf(const ExchangeConfig& config, const ExchangeSlotMemory& memory,
                      const DeviceMemory& experts, int num_experts);
// The slot with the number `slot`, which a caller has given.
template <typename Slot>
Slot& SlotAt(std::vector<Slot>& slots, int slot) {
  CHECK_GE(slot, 0);
  CHECK_LT(slot, std::ssize(slots));
  return slots[static_cast<size_t>(slot)];
}
// Sets the batch's fields that depend on its tokens. Error kResource if there are more tokens than
// batch.max_tokens, kInvalid if their dtype is unsupported.
void SetTokens(ExchangeBatch& batch, const RowExchange::Tokens& tokens);
// Returns [experts] rank << kRankShift | local id, in device memory.
DeviceMemory PlacesOf(const ExpertMap& experts, int ranks);

}  // namespace switchyard::cuda
