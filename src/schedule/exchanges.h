// The all-to-alls in flight while the operations of a schedule run.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "schedule/operation.h"

namespace switchyard::schedule {

// Tracks the exchanges in flight while the operations of a list are applied. A value type. Used by
// one thread at a time.
class ExchangesInFlight {
 public:
  // If the operation completes an exchange, removes it. If it starts an exchange, adds it.
  void Apply(const Operation& operation);
  // The operations that started the exchanges in flight, oldest first.
  std::span<const Operation> started() const { return started_; }
  // For example "3c' 4d": in flight are the gradient of combine of micro-batch 3, and dispatch of
  // micro-batch 4.
  std::string Describe() const;

 private:
  std::vector<Operation> started_;
};

// Maximum number of all-to-alls in flight. ExpertExchangeOptions::in_flight must be at least this
// number.
int MaxExchangesInFlight(std::span<const Operation> list);

// Returns the first fault in the exchanges of a list, or an empty string. A fault is two exchanges
// of one micro-batch in flight, more than `limit` exchanges in flight, or an exchange that no
// operation completes.
std::string FindExchangeError(std::span<const Operation> list, int limit, int first_layer = 0);

}  // namespace switchyard::schedule
