// Emulates a slow network for tests and benchmarks.
#pragma once

#include <chrono>
#include <memory>

#include "train/exchange/row_exchange.h"

namespace switchyard::train {

struct ExchangeDelay {
  std::chrono::nanoseconds delay{0};
  // Whether `inner` is synchronous: Post then waits for the messages, so the delay applies to Post.
  bool synchronous = false;
};

// Wraps the exchange `inner`: messages arrive no earlier than `delay` after this rank's Post, as if
// all messages of a batch took that long. Wait sleeps for the remaining time, so the cores are free
// for other ranks; computation between Post and Wait hides the delay. `delay` is borrowed and read
// at each Post.
std::unique_ptr<RowExchange> MakeDelayedExchange(std::unique_ptr<RowExchange> inner,
                                                 const ExchangeDelay& delay);

}  // namespace switchyard::train
