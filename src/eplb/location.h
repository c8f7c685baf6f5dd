// Logical-to-physical expert maps of a placement: the slots of each expert.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// The maps of all layers; immutable, equal on every rank.
class ExpertLocation {
 public:
  ExpertLocation() = default;
  // `replica` [layers, physical]: the index of each slot among its expert's replicas, as DeepSeek's
  // planner numbers them. If it is empty, replicas are in ascending order of slots.
  explicit ExpertLocation(const Placement& placement, std::span<const int32_t> replica = {});

  int layers() const { return placement_.layers; }
  int num_logical() const { return placement_.logical; }
  int num_physical() const { return placement_.physical; }
  int max_replicas() const { return max_replicas_; }  // X
  const Placement& placement() const { return placement_; }

  // [layers, logical, X] slots of each expert. X: maximum number of replicas; padded with −1.
  std::span<const int32_t> logical_to_all_physical() const { return to_physical_; }
  std::span<const int32_t> valid_counts() const { return counts_; }  // [layers, logical]

  // The slots of one expert, at least one.
  std::span<const int32_t> Replicas(int layer, int32_t expert) const {
    const size_t row = static_cast<size_t>(layer) * placement_.logical + expert;
    return std::span(to_physical_).subspan(row * max_replicas_, counts_[row]);
  }

 private:
  Placement placement_;
  int max_replicas_ = 0;
  std::vector<int32_t> to_physical_, counts_;
};

}  // namespace switchyard
