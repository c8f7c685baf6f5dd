#include "moe/placement/active_placement.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/check.h"

namespace switchyard {
namespace {

// The experts of each active rank: its own, then a part of those that no active rank has.
std::vector<std::vector<int32_t>> ExpertsOfActive(const ExpertPlacement& whole, int ep,
                                                  std::span<const int> active) {
  std::vector<std::vector<int32_t>> experts;
  std::vector<bool> placed(static_cast<size_t>(whole.num_logical()), false);
  for (const int rank : active) {
    const Range own = ExpertsOfRank(whole.num_physical(), ep, rank);
    const auto ids = whole.physical_to_logical().subspan(own.begin, own.size());
    experts.emplace_back(ids.begin(), ids.end());
    for (const int32_t id : ids) placed[id] = true;
  }
  for (int32_t id = 0; id < whole.num_logical(); ++id) {
    if (placed[id]) continue;
    std::ranges::min_element(experts, {}, &std::vector<int32_t>::size)->push_back(id);
  }
  return experts;
}

}  // namespace

std::vector<ExpertPlacement> PlacementsOfActive(std::span<const ExpertPlacement> whole, int ep,
                                                std::span<const int> active) {
  CHECK(!active.empty());
  std::vector<std::vector<std::vector<int32_t>>> layers;
  size_t places = 0;  // of each rank
  for (const ExpertPlacement& placement : whole) {
    layers.push_back(ExpertsOfActive(placement, ep, active));
    for (const auto& experts : layers.back()) places = std::max(places, experts.size());
  }
  std::vector<ExpertPlacement> placements;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<int32_t> map;
    for (std::vector<int32_t>& experts : layers[layer]) {
      experts.resize(places, experts.empty() ? 0 : experts.front());
      map.insert(map.end(), experts.begin(), experts.end());
    }
    placements.emplace_back(whole[layer].num_logical(), std::move(map));
  }
  return placements;
}

}  // namespace switchyard
