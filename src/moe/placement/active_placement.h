// Expert placement while some EP ranks are absent.
#pragma once

#include <span>
#include <vector>

#include "moe/placement/placement.h"

namespace switchyard {

// Placements over the EP ranks `active`, renumbered from 0, from those over all `ep` ranks. Each
// rank first has the experts that it has in `whole`, in the same order. Then follow the experts
// that no active rank has, divided evenly. All ranks and layers have the same number of physical
// experts, so a rank may end with replicas of its first expert, which need no memory. So every
// logical expert has a physical expert on an active rank. `whole`: one for each layer, with equally
// many physical experts. `active`: ascending, not empty. Pure.
std::vector<ExpertPlacement> PlacementsOfActive(std::span<const ExpertPlacement> whole, int ep,
                                                std::span<const int> active);

}  // namespace switchyard
