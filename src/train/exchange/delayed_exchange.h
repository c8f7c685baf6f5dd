// A slow network for tests and measurements.
#pragma once

#include <chrono>
#include <memory>

#include "train/exchange/row_exchange.h"

namespace switchyard::train {

struct ExchangeDelay {
  std::chrono::nanoseconds delay{0};
  // Of an inner exchange in the synchronous form: Post waits for the messages, so it is Post that
  // takes longer.
  bool synchronous = false;
};

// The exchange `inner`, whose messages arrive no earlier than the delay after this rank's Post: as
// if all of a batch's messages took that long. Wait sleeps for what is left of it, so the cores are
// free for other ranks; a schedule that computes between Post and Wait hides it. `delay` is
// borrowed and read at each Post.
std::unique_ptr<RowExchange> MakeDelayedExchange(std::unique_ptr<RowExchange> inner,
                                                 const ExchangeDelay& delay);

}  // namespace switchyard::train
