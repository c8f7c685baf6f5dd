// A slow network for tests and measurements.
#pragma once

#include <chrono>
#include <memory>

#include "train/exchange/row_exchange.h"

namespace switchyard::train {

// The exchange `inner`, whose messages arrive no earlier than `delay` after this rank's Post: as if
// all of a batch's messages took that long. Wait sleeps for what is left of it, so the cores are
// free for other ranks; a schedule that computes between Post and Wait hides it.
std::unique_ptr<RowExchange> MakeDelayedExchange(std::unique_ptr<RowExchange> inner,
                                                 std::chrono::nanoseconds delay);

}  // namespace switchyard::train
