#include "schedule/exchanges.h"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard::schedule {
namespace {

// The operation that starts the exchange which `end` completes. In a dense layer, no such operation
// exists.
Operation StartOf(const Operation& end) {
  Operation start = end;
  const bool forward = end.kind == Kind::kForward;
  // In the forward pass, kExperts reads the rows of dispatch, and kFinish those of combine. In the
  // backward pass, kExperts reads the gradient of combine, and kAttention that of dispatch.
  start.phase = (end.phase == Phase::kExperts) == forward ? Phase::kDispatch : Phase::kCombine;
  return start;
}

}  // namespace

void ExchangesInFlight::Apply(const Operation& operation) {
  if (EndsExchange(operation)) std::erase(started_, StartOf(operation));
  if (BeginsExchange(operation)) started_.push_back(operation);
}

std::string ExchangesInFlight::Describe() const {
  std::string text;
  for (const Operation& start : started_) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", start.micro_batch,
                        start.phase == Phase::kDispatch ? "d" : "c",
                        start.kind == Kind::kBackward ? "'" : "");
  }
  return text;
}

int MaxExchangesInFlight(std::span<const Operation> list) {
  ExchangesInFlight exchanges;
  size_t most = 0;
  for (const Operation& operation : list) {
    exchanges.Apply(operation);
    most = std::max(most, exchanges.started().size());
  }
  return static_cast<int>(most);
}

std::string FindExchangeError(std::span<const Operation> list, int limit, int first_layer) {
  ExchangesInFlight exchanges;
  const auto describe = [&](const Operation& o) { return Describe(o, first_layer); };
  for (const Operation& operation : list) {
    exchanges.Apply(operation);
    if (!BeginsExchange(operation)) continue;
    const std::span<const Operation> started = exchanges.started();
    for (const Operation& other : started.first(started.size() - 1)) {
      if (other.micro_batch == operation.micro_batch) {
        return fmt::format("{} starts while {} is in flight", describe(operation), describe(other));
      }
    }
    if (static_cast<int>(started.size()) > limit) {
      return fmt::format("{} exchanges are in flight at {}, the limit is {}", started.size(),
                         describe(operation), limit);
    }
  }
  if (exchanges.started().empty()) return {};
  return fmt::format("{} is never completed", describe(exchanges.started().front()));
}

}  // namespace switchyard::schedule
