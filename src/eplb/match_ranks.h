// Assigns the per-rank expert sets of a new plan to ranks so that few experts move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// Ranks are interchangeable to a plan. Permutes the contents of living ranks of `next` [physical]
// to minimize transfers from `previous` [physical]. A transfer from another node costs `node_price`
// times one within the node. Experts that stay on a rank keep their slots. Greedy assignment, then
// pairwise exchanges until none improves the cost.
void MatchRanks(std::span<const int32_t> previous, const std::vector<RankSlots>& bins, int nodes,
                int num_logical, double node_price, std::span<int32_t> next);

}  // namespace switchyard
