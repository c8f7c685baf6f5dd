// Where each expert sits.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/layer.h"

namespace switchyard {

// Expert id → EP rank that holds it and its index among that rank's experts.
class ExpertMap {
 public:
  ExpertMap(int num_experts, int ep) : places_(num_experts) {
    for (int rank = 0; rank < ep; ++rank) {
      const ExpertRange range = ExpertsOfRank(num_experts, ep, rank);
      for (int e = range.begin; e < range.end; ++e) places_[e] = {rank, e - range.begin};
    }
  }

  int Owner(int32_t expert) const { return places_[expert].rank; }
  int32_t LocalId(int32_t expert) const { return places_[expert].local_id; }
  // The local id on `rank`; −1 where the expert sits elsewhere or `expert` is −1.
  int32_t LocalIdOn(int rank, int32_t expert) const {
    return expert >= 0 && Owner(expert) == rank ? LocalId(expert) : -1;
  }

 private:
  struct Place {
    int rank = 0;
    int32_t local_id = 0;
  };
  std::vector<Place> places_;
};

}  // namespace switchyard
