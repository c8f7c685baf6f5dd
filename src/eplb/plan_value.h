// Compares the gain of a plan with the cost of its migration, to skip layers that are not worth
// moving.
#pragma once

#include "eplb/replica_choice.h"
#include "eplb/types.h"

namespace switchyard {

// Number of rows that a rank can compute while it receives the weights of one expert from its own
// node. Memory bandwidth limits both operations: computing these rows reads the weights once.
constexpr double kRowsPerExpert = 64;

// Finds the layers of `*plan` whose moves gain less than they cost, and resets them to their
// placement in `previous`. Returns the number of layers reset. Per layer, over the recorded steps:
//   gain   reduction of the most loaded rank's rows, summed over the steps
//   cost   kRowsPerExpert rows per expert received (four times that from other nodes) / ranks, plus
//          two standard deviations of the most loaded rank's count: a gain below this is noise of
//          few tokens and does not last
// A layer is also reset if its gain is below 1 % of the time of all passes. The time of a pass
// counts as the rows of its most loaded rank, plus kRowsPerExpert for reading the weights of one
// expert. `passes`: number of passes in the history. With dispatch `fake` no layer is reset, since
// its loads do not depend on the placement. Pure. Both placements are valid for `topology` and have
// the history's layers and experts.
int ResetLayersNotWorthMoving(const LoadHistory& history, int64_t passes,
                              EpDispatchAlgorithm dispatch, const RankTopology& topology,
                              const Placement& previous, Placement* plan);

}  // namespace switchyard
