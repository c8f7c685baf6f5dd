// Where the parts of an exchange lie in peer memory.
#pragma once

#include "core/cuda/runtime.h"
#include "moe/cuda/exchange_launch.h"
#include "moe/cuda/row_exchange.h"
#include "moe/placement.h"

namespace switchyard::cuda {

RowKind RowKindOf(RowFormat format);
// Of one slot; its `bytes` are a multiple of 256. Error kInvalid says what a configuration may not
// have.
ExchangeLayout LayoutOf(const ExchangeConfig& config);
// Gives the batch all that it needs of its tokens, whatever rows travel over. Error kInvalid where
// their type is none that can be sent.
void SetTokens(ExchangeBatch& batch, const RowExchange::Tokens& tokens);
// [experts] rank << kRankShift | local id, on the device.
DeviceMemory PlacesOf(const ExpertMap& experts, int ranks);

}  // namespace switchyard::cuda
