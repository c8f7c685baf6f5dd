// Compares the gain of a plan with the cost of its migration.
#pragma once

#include "eplb/replica_choice.h"
#include "eplb/types.h"

namespace switchyard {

// Number of rows that a rank computes in the time that it needs to receive the weights of one
// expert from its own node. Both are limited by memory bandwidth, and these rows read the weights
// once.
constexpr double kRowsPerExpert = 64;

// Resets layers of `*plan` to their placement in `previous` if moving them gains less than it
// costs; returns their number. Per layer, over the recorded steps:
//   gain   reduction of the fullest rank's rows, summed over the steps
//   cost   kRowsPerExpert rows per expert received (four times that from other nodes) / ranks,
//          plus two standard deviations of the fullest rank's count: a plan that only fits the
//          noise of few tokens gains nothing later
// A gain below one hundredth of a pass is too small at any cost; a pass takes at least the time of
// its fullest rank's rows and of one expert's weights. `passes`: number of passes in the history.
// With dispatch `fake` no layer is reset, since its loads do not depend on the placement. Pure.
// Both placements are valid for `topology` and have the history's layers and experts.
int ResetLayersNotWorthMoving(const LoadHistory& history, int64_t passes,
                              EpDispatchAlgorithm dispatch, const RankTopology& topology,
                              const Placement& previous, Placement* plan);

}  // namespace switchyard
