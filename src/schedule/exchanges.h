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
  // Removes the exchange that the operation completes, or adds the one that it starts.
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

// Returns the first fault in the exchanges of a list, or an empty string. Faults: two exchanges of
// one micro-batch in flight, more than `limit` in flight, or one that no later operation completes.
std::string FindExchangeError(std::span<const Operation> list, int limit, int first_layer = 0);

}  // namespace switchyard::schedule
