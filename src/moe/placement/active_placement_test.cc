#include "moe/placement/active_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace switchyard {
namespace {

// Random placements of several layers, with replicas, and random sets of active ranks.
TEST(ActivePlacementTest, EveryExpertHasAPlaceOnAnActiveRank) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int ep = 1 + static_cast<int>(random() % 9);
    const int logical = ep + static_cast<int>(random() % 40);
    const int redundant = static_cast<int>(random() % 12);
    std::vector<ExpertPlacement> whole;
    for (int layer = 0; layer < 3; ++layer) {
      const ExpertPlacement trivial = ExpertPlacement::Trivial(logical, redundant);
      std::vector<int32_t> map(trivial.physical_to_logical().begin(),
                               trivial.physical_to_logical().end());
      std::ranges::shuffle(map, random);
      whole.emplace_back(logical, std::move(map));
    }
    std::vector<int> active;
    for (int rank = 0; rank < ep; ++rank) {
      if (random() % 3 != 0) active.push_back(rank);
    }
    if (active.empty()) active.push_back(static_cast<int>(random() % static_cast<unsigned>(ep)));

    // The constructor of ExpertPlacement checks that every expert has a place.
    const auto placements = PlacementsOfActive(whole, ep, active);
    ASSERT_EQ(placements.size(), whole.size());
    const int ranks = static_cast<int>(active.size());
    ASSERT_EQ(placements[0].num_physical() % ranks, 0);
    for (size_t layer = 0; layer < whole.size(); ++layer) {
      ASSERT_EQ(placements[layer].num_physical(), placements[0].num_physical());
      std::set<int32_t> owned;
      for (const int rank : active) {
        const Range own = ExpertsOfRank(whole[layer].num_physical(), ep, rank);
        for (int place = own.begin; place < own.end; ++place)
          owned.insert(whole[layer].physical_to_logical()[place]);
      }
      std::multiset<int32_t> loaded;
      for (int i = 0; i < ranks; ++i) {
        const Range old = ExpertsOfRank(whole[layer].num_physical(), ep, active[i]);
        const Range now = ExpertsOfRank(placements[layer].num_physical(), ranks, i);
        const auto before = whole[layer].physical_to_logical().subspan(old.begin, old.size());
        const auto after = placements[layer].physical_to_logical().subspan(now.begin, now.size());
        ASSERT_TRUE(std::ranges::equal(before, after.first(before.size())));
        for (const int32_t id : after.subspan(before.size())) {
          if (std::ranges::find(before, id) == before.end()) loaded.insert(id);
        }
        // A replica is used only where an active rank has it.
        for (const int32_t place : placements[layer].ReplicasFor(ranks, i))
          ASSERT_TRUE(place >= 0 && place < placements[layer].num_physical());
      }
      // The ranks load exactly the experts that none of them has, each once.
      ASSERT_EQ(loaded.size(), static_cast<size_t>(logical) - owned.size());
      for (const int32_t id : loaded) ASSERT_FALSE(owned.contains(id));
    }
  }
}

TEST(ActivePlacementTest, AllRanksKeepTheirPlacement) {
  const std::vector<ExpertPlacement> whole(2, ExpertPlacement::Trivial(8, 4));
  const std::vector<int> all{0, 1, 2, 3};
  for (const ExpertPlacement& placement : PlacementsOfActive(whole, 4, all))
    EXPECT_TRUE(
        std::ranges::equal(placement.physical_to_logical(), whole[0].physical_to_logical()));
}

}  // namespace
}  // namespace switchyard
