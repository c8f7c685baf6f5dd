// Whether a list of operations does the work of a step, all of it, once, in an order that holds.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "overlap/plan.h"

namespace switchyard::overlap {

// What is wrong with the list of one rank, or an empty string:
// - every operation that the shape asks for is there once, and no other;
// - each comes after what it needs: phases in their order, layers in theirs, a backward pass after
//   its losses, a layer's sum after its last backward pass;
// - gradients are added in the order of micro-batches: a backward pass ends before the next begins,
//   and the head of a micro-batch (whose matrix may be the embedding) follows the backward pass of
//   the one before. So no bit of a step depends on its order;
// - no more micro-batches are under way than Places says.
std::string FindFault(const StepShape& shape, std::span<const Operation> list);

// What is wrong with the lists of all stages together: sends and receives that do not match, or
// stages that wait for one another for ever where a link holds `link_places` messages that were not
// received yet (a send waits for room).
std::string FindPipelineFault(std::span<const std::vector<Operation>> stages, int link_places);

// The most exchanges with other ranks' experts that are under way at once: what
// RowExchangeOptions::places has to hold.
int ExchangesUnderWay(const StepShape& shape, std::span<const Operation> list);

}  // namespace switchyard::overlap
