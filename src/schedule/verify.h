// Verifies schedules of training and of serving: each operation of a step runs exactly once, in a
// valid order, without deadlock.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "schedule/plan.h"
#include "schedule/serve.h"

namespace switchyard::schedule {

// Returns the first fault in the list of one rank, or an empty string. Checks that:
// - each operation that the shape requires is listed exactly once, and no other;
// - each operation follows its dependencies: phases and layers in order, a backward pass after its
//   losses, a layer's gradient sum after its last backward pass;
// - gradients are accumulated in micro-batch order. A backward pass ends before the next one
//   begins. The head of a micro-batch follows the backward pass of the previous one, because the
//   head's matrix may be the embedding. So the results of a step are bitwise independent of the
//   schedule;
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
