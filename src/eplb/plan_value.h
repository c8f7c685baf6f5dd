// Whether a plan is worth its migration.
#pragma once

#include "eplb/replica_choice.h"
#include "eplb/types.h"

namespace switchyard {

// Rows that a rank computes in the time in which it receives the weights of one expert from its own
// node: both are bounded by memory bandwidth, and these rows read the weights once.
constexpr double kRowsPerExpert = 64;

// Gives layers of `*plan` their placement in `previous` again where moving them gains less than it
// costs; returns how many. Per layer, over the recorded steps:
//   gain   rows that the fullest rank has less, summed over the steps
//   cost   kRowsPerExpert rows per expert received (four times that from other nodes) / ranks,
//          plus two standard deviations of the fullest rank's count: a plan that only fits the
//          noise of few tokens gains nothing later
// A gain below one hundredth of a pass is too small at any cost: a pass takes at least as long as
// its fullest rank's rows and one expert's weights. `passes`: how many the history covers. With
// dispatch `fake` no layer is reset, since its loads do not depend on the placement. Pure. Both
// placements are valid for `topology` and have the history's layers and experts.
int ResetLayersNotWorthMoving(const LoadHistory& history, int64_t passes,
                              EpDispatchAlgorithm dispatch, const RankTopology& topology,
                              const Placement& previous, Placement* plan);

}  // namespace switchyard
