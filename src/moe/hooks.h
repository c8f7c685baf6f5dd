// Work of others that is slipped into the exchange.
#pragma once

#include <functional>

namespace switchyard {

// Called by MoeLayer::Forward once for each exchange (a batch in rounds has several), on the rank's
// thread. `during_*` run while rows travel: the exchange has begun and is not waited for yet. Empty
// ones cost nothing. They may compute, and may use communicators of their own or those of other
// groups, in one order on every rank; not the dispatcher that is under way on the same handle.
struct MoeHooks {
  std::function<void()> before_dispatch, during_dispatch, after_dispatch;
  std::function<void()> before_combine, during_combine, after_combine;
};

}  // namespace switchyard
