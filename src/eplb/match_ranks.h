// Assigns the sets of experts of a new plan to ranks so that few experts move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// A plan stays equally good if ranks exchange all their experts. So the contents of the living
// ranks of `next` [physical] are permuted to minimize transfers from `previous` [physical]. A
// transfer from another node costs `node_price` times as much as a transfer within the node.
// Experts that stay on a rank keep their slots. The assignment is greedy, followed by pairwise
// exchanges until no exchange improves the cost.
void MatchRanks(std::span<const int32_t> previous, const std::vector<RankSlots>& bins, int nodes,
                int num_logical, double node_price, std::span<int32_t> next);

}  // namespace switchyard
