// Mapping of the router's logical experts to physical experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/placement/placement.h"
#include "moe/router/router.h"

namespace switchyard {

// Maps ids to physical experts: logical expert i becomes replicas[i]
// (ExpertPlacement::ReplicasFor), and −1 remains −1.
void ToPhysical(std::span<const int32_t> replicas, const TopK& logical, TopK* physical);

// Appends to every token a slot for the shared expert of one rank (--enable-deepep-waterfill).
// `weights` [tokens]: the weights of these slots; null: 1. For each token, selects the rank with
// the fewest rows of these tokens so far, routed and shared. Ties go to this rank, which transfers
// nothing; then to a rank that already receives the token's row; then to the lowest rank. Skips
// ranks with 0 in `active`; if it is empty, all ranks are active.
void AppendSharedSlots(const ExpertMap& experts, int ranks, int this_rank,
                       std::span<const uint8_t> active, const float* weights, TopK* physical);

}  // namespace switchyard
