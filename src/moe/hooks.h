// Hooks for work that overlaps the exchange.
#pragma once

#include <functional>

namespace switchyard {

// MoeLayer::Forward calls each hook once per exchange, on the rank's thread. A batch in rounds has
// one dispatch per round, and one combine per round or one for all rounds
// (MoeBatch::combines_once). `during_*` run between the begin and the wait of an exchange. Empty
// hooks cost nothing. Hooks may compute, and may use communicators of their own or of other groups,
// in one order on every rank. They must not use the dispatcher of the same handle.
struct MoeHooks {
  std::function<void()> before_dispatch, during_dispatch, after_dispatch;
  std::function<void()> before_combine, during_combine, after_combine;
};

}  // namespace switchyard
