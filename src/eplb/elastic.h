// Placements for the ranks that are still alive.
#pragma once

#include "eplb/types.h"

namespace switchyard {

// There are three cases. If slots do not divide evenly over ranks, the plan is the initial plan of
// `yard` (PlanFromScratch). Otherwise, if all ranks are alive, it is DeepSeek's plan (deepseek.h),
// which is hierarchical if the groups of experts divide evenly over the nodes. Otherwise it is
// DeepSeek's global plan for the living ranks, placed in their slots, as in SGLang's
// elasticity_aware.
//
// Every expert has a slot on a living rank; slots of dead ranks are −1. Throws the errors of
// ValidateTopology (kInvalid).
Placement PlanElastic(const LoadHistory& history, const RankTopology& topology, int physical);

}  // namespace switchyard
