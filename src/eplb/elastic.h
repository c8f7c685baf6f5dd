// Placements for the ranks that are left.
#pragma once

#include "eplb/types.h"

namespace switchyard {

// With all ranks alive DeepSeek's plan (deepseek.h), hierarchical where the groups of experts
// divide over the nodes. Else, as SGLang's elasticity_aware does, DeepSeek's global plan for the
// ranks that are alive, at their places. Where places do not divide over ranks, so that these have
// unequal numbers, the start of `yard` (StartFromNothing). Every expert has a place on a living
// rank; those of dead ones are −1. Error kInvalid: ValidateTopology's.
Placement PlanElastic(const LoadHistory& history, const RankTopology& topology, int physical);

}  // namespace switchyard
