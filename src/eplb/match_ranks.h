// Which rank gets which part of a new plan, so that little has to move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// Ranks are alike to a plan: exchanges the contents of living ranks of `next` [physical] so that
// few experts have to travel from `previous` [physical], one from another node counting as
// `node_price` from this one; and leaves what stays on a rank at its place. Greedy, then exchanges
// of two until none helps.
void MatchRanks(std::span<const int32_t> previous, const std::vector<RankSlots>& bins, int nodes,
                int num_logical, double node_price, std::span<int32_t> next);

}  // namespace switchyard
