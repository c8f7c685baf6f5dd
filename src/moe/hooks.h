// Hooks for work that overlaps the exchange.
#pragma once

#include <functional>

namespace switchyard {

// MoeLayer::Forward calls each hook once per exchange (a batch in rounds has several), on the
// rank's thread. `during_*` run between the begin and the wait of an exchange. Empty hooks cost
// nothing. Hooks may compute, and may use communicators of their own or of other groups, in one
// order on every rank. They must not use the dispatcher of the same handle.
struct MoeHooks {
  std::function<void()> before_dispatch, during_dispatch, after_dispatch;
  std::function<void()> before_combine, during_combine, after_combine;
};

}  // namespace switchyard
