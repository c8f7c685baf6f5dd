// Random placements of a test layer's experts, and a chooser of replicas.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/router/physical_choice.h"
#include "moe/test_layer.h"

namespace switchyard {

// A placement with every expert at least once and some more often, in random slots; the same on
// every rank.
inline ExpertPlacement RandomPlacement(int experts, int redundant, uint32_t seed) {
  kernels::Random random(seed);
  std::vector<int32_t> map = random.Shuffled(experts);
  for (int i = 0; i < redundant; ++i)
    map.insert(map.begin() + random.Below(static_cast<int64_t>(map.size())),
               static_cast<int32_t>(random.Below(experts)));
  return {experts, map};
}

// This rank's experts with `placement`.
inline std::vector<OwnedExpert> ShardUnder(const TestLayer& layer, const Mesh& mesh,
                                           const ExpertPlacement& placement) {
  const Range range = ExpertsOfRank(placement.num_physical(), mesh);
  std::vector<OwnedExpert> experts;
  for (int p = range.begin; p < range.end; ++p)
    experts.push_back({TestLayer::Slice(layer.whole.experts[placement.physical_to_logical()[p]],
                                        mesh.moe_tp(), mesh.moe_tp_rank()),
                       nullptr});
  return experts;
}

// Distributes the selections of an expert over its replicas in round-robin order.
class RoundRobinChooser : public ReplicaChooser {
 public:
  void OnPlacement(int, const ExpertPlacement& placement) override {
    places_.assign(placement.num_logical(), {});
    for (int32_t p = 0; p < placement.num_physical(); ++p)
      places_[placement.physical_to_logical()[p]].push_back(p);
    next_.resize(places_.size());
  }
  void Choose(const RoundToChoose&, const TopK& logical, TopK* physical) override {
    *physical = logical;
    for (int32_t& id : physical->ids)
      if (id >= 0) id = places_[id][next_[id]++ % places_[id].size()];
  }

 private:
  std::vector<std::vector<int32_t>> places_;
  std::vector<size_t> next_;
};

}  // namespace switchyard
