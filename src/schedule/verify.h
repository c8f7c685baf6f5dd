// Verifies a schedule: dependencies, exchanges, and the order of collectives.
#pragma once

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "schedule/operation.h"
#include "schedule/plan.h"
#include "schedule/serve.h"

namespace switchyard::schedule {

// The constraints of a step on its schedule: its operations, and which of them must run before
// which.

// A value type. Used by one thread at a time.
class Constraints {
 public:
  // Requires the operation exactly once. Returns it.
  Operation Add(const Operation& operation);
  // Requires `next` exactly once, at any position after `previous`. Returns `next`.
  Operation After(const Operation& previous, const Operation& next);
  // Requires `operation` exactly once, at any position between `first` and `last`.
  void Between(const Operation& first, const Operation& operation, const Operation& last);
  // Orders two operations without requiring them. Add or After must also be called for each of
  // them.
  void Before(const Operation& first, const Operation& last);

  // Returns the first fault of a list, or an empty string. `first_layer` is added to the layer
  // numbers in the text.
  std::string FindError(std::span<const Operation> list, int first_layer) const;

 private:
  std::set<Operation> operations_;
  std::vector<std::pair<Operation, Operation>> order_;
};

// The all-to-alls in flight while the operations of a schedule run.

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

// Verifies schedules of training and of serving: each operation of a step runs exactly once, in a
// valid order, without deadlock.

// Returns the first fault in the list of one rank, or an empty string. Checks that:
// - each operation that the shape requires is listed exactly once, and no other;
// - each operation follows its dependencies: phases and layers in order, a backward pass after its
//   losses, separate weight gradients after the layer's backward pass, a layer's gradient sum after
//   the last operation that adds to its gradients;
// - gradients are accumulated in micro-batch order, separate weight gradients of a layer too. A
//   backward pass ends before the next one begins. The head of a micro-batch follows the backward
//   pass of the previous one, because the head's matrix may be the embedding. So the results of a
//   step are bitwise independent of the schedule;
// - at most MicroBatchSlots micro-batches are in flight;
// - at most one all-to-all is in flight; with Order::kOverlapped at most two, of different
//   micro-batches.
std::string FindScheduleError(const StepShape& shape, std::span<const Operation> list);

// Returns the first fault in the list of one rank for a step of serving, or an empty string. Checks
// that:
// - each operation that the shape requires is listed exactly once, and no other;
// - the operations of each micro-batch are in order, with the shared expert between the start and
//   the completion of SharedUnder's exchange;
// - micro-batches begin and end in order, because a link delivers their rows in order;
// - at most one all-to-all of each micro-batch is in flight.
// The order of operations of different micro-batches is not restricted otherwise, because
// micro-batches share no data.
std::string FindScheduleError(const ServeShape& shape, std::span<const Operation> list);

// Returns the first fault in the lists of all stages together, or an empty string. A fault is a
// send and a receive that do not match, or a deadlock. A link has space for `link_places` messages
// that are not received yet; a send blocks while the link is full.
std::string FindPipelineError(std::span<const std::vector<Operation>> stages, int link_places);

}  // namespace switchyard::schedule
