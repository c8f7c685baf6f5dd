// Where the parts of an exchange lie in peer memory.
#pragma once

#include "moe/cuda/exchange.h"
#include "moe/cuda/exchange_launch.h"

namespace switchyard::cuda {

RowKind RowKindOf(RowFormat format);
// Of one slot; its `bytes` are a multiple of 256. Error kInvalid says what a configuration may not
// have.
ExchangeLayout LayoutOf(const ExchangeConfig& config);

}  // namespace switchyard::cuda
