// Layout of the exchange buffers in peer memory.
#pragma once

#include "core/cuda/runtime.h"
#include "moe/cuda/dispatchers/exchange_launch.h"
#include "moe/cuda/dispatchers/row_exchange.h"
#include "moe/placement/placement.h"

namespace switchyard::cuda {

RowKind RowKindOf(RowFormat format);
// Returns the layout of one slot; `bytes` is a multiple of 256. Error kInvalid names the
// unsupported parameter.
ExchangeLayout LayoutOf(const ExchangeConfig& config);
// Sets the batch's fields that depend on its tokens. Used by the exchanges over peer memory and
// over NCCL. Error kInvalid if the tokens' dtype is unsupported.
void SetTokens(ExchangeBatch& batch, const RowExchange::Tokens& tokens);
// Returns [experts] rank << kRankShift | local id, in device memory.
DeviceMemory PlacesOf(const ExpertMap& experts, int ranks);

}  // namespace switchyard::cuda
