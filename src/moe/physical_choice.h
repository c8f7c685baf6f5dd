// From the router's choice of logical experts to the places that rows are sent to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/placement.h"
#include "moe/router.h"

namespace switchyard {

// ids become physical experts: logical i is replicas[i] (ExpertPlacement::ReplicasFor); −1 stays.
void ToPhysical(std::span<const int32_t> replicas, const TopK& logical, TopK* physical);

// Appends a slot to every token that sends it to the shared expert of one rank (`weights` [tokens],
// null: 1). The rank is the one with the least rows of these tokens so far, routed ones and shared
// ones; of equals this rank itself, from which nothing travels, then one that the token's row
// visits anyway, then the lowest. Ranks that `active` has a 0 for are left out; empty: all take
// part.
// (`--enable-deepep-waterfill`.)
void AppendSharedSlots(const ExpertMap& experts, int ranks, int this_rank,
                       std::span<const uint8_t> active, const float* weights, TopK* physical);

}  // namespace switchyard
