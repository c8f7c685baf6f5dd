// Layouts of the ranks that serve while other ranks load (--elastic-ep-backend).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/config.h"
#include "moe/placement/placement.h"

namespace switchyard {

// Configuration and plan of an epoch without some ranks. The active ranks are those of a smaller
// layout with redundant experts. So nothing sends to absent ranks: all groups, the exchange, the
// selection of replicas and waterfill know only the ranks of the layout. The cache of an attention
// group has the same size as in the whole layout. The limit of running requests of all groups
// together stays about the same.
struct ActiveLayout {
  EngineConfig config;
  EnginePlan plan;
};
// `active`: ascending, not empty. Requires --elastic-ep-backend, for which CheckOptions
// (engine/checks) accepts only layouts whose ranks can serve without each other.
ActiveLayout LayoutOfActive(const EngineConfig& config, const EnginePlan& plan,
                            std::span<const int> active);

// Symmetric memory per rank in an epoch without one rank.
size_t SymmetricBytesWithoutARank(const EngineConfig& config, const EnginePlan& plan);

// Whether the ranks `active` can serve now: their exchange fits in the symmetric memory of the
// plan, and the experts that they have to load fit in the memory of this host, beside the weights
// of the absent ranks.
bool CanServe(const EngineConfig& config, const EnginePlan& plan, const std::vector<int>& active);

}  // namespace switchyard
