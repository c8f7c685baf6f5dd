// Placements for the ranks that are still alive.
#pragma once

#include "eplb/types.h"

namespace switchyard {

// Plans by case. If slots do not divide evenly over ranks: the initial plan of `yard`
// (PlanFromScratch). Otherwise, if all ranks are alive: DeepSeek's plan (deepseek.h), hierarchical
// if the groups of experts divide evenly over the nodes. Otherwise, as in SGLang's
// elasticity_aware: DeepSeek's global plan for the living ranks, placed in their slots.
//
// Every expert has a slot on a living rank; slots of dead ranks are −1. Error kInvalid: errors of
// ValidateTopology.
Placement PlanElastic(const LoadHistory& history, const RankTopology& topology, int physical);

}  // namespace switchyard
