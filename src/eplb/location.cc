#include "eplb/location.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard {

ExpertLocation::ExpertLocation(const Placement& placement, std::span<const int32_t> replica)
    : placement_(placement), counts_(static_cast<size_t>(placement.layers) * placement.logical, 0) {
  const auto count = [&](int layer, int32_t expert) -> int32_t& {
    return counts_[static_cast<size_t>(layer) * placement.logical + expert];
  };
  for (int layer = 0; layer < placement.layers; ++layer)
    for (const int32_t expert : placement.Layer(layer))
      if (expert >= 0) max_replicas_ = std::max(max_replicas_, ++count(layer, expert));
  to_physical_.assign(counts_.size() * max_replicas_, -1);
  std::ranges::fill(counts_, 0);
  for (int layer = 0; layer < placement.layers; ++layer)
    for (int32_t p = 0; p < placement.physical; ++p) {
      const int32_t expert = placement.Layer(layer)[p];
      if (expert < 0) continue;
      int32_t& seen = count(layer, expert);
      const int32_t number =
          replica.empty() ? seen : replica[static_cast<size_t>(layer) * placement.physical + p];
      CHECK(number >= 0 && number < max_replicas_);
      to_physical_[(static_cast<size_t>(layer) * placement.logical + expert) * max_replicas_ +
                   number] = p;
      ++seen;
    }
}

}  // namespace switchyard
