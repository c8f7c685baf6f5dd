// A placement seen from the experts: which places each of them can be reached at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// All layers; immutable, equal on every rank.
class ExpertLocation {
 public:
  ExpertLocation() = default;
  // Replicas ascend by place. With `replica` [layers, physical], the number of each place among its
  // expert's replicas, they stand in that order (DeepSeek's planner numbers them).
  explicit ExpertLocation(const Placement& placement, std::span<const int32_t> replica = {});

  int layers() const { return placement_.layers; }
  int num_logical() const { return placement_.logical; }
  int num_physical() const { return placement_.physical; }
  int most_replicas() const { return most_; }  // X
  const Placement& placement() const { return placement_; }

  // [layers, logical, X], −1 where an expert has fewer replicas.
  std::span<const int32_t> logical_to_all_physical() const { return to_physical_; }
  std::span<const int32_t> valid_counts() const { return counts_; }  // [layers, logical]

  // The places of one expert, at least one.
  std::span<const int32_t> Replicas(int layer, int32_t expert) const {
    const size_t row = static_cast<size_t>(layer) * placement_.logical + expert;
    return std::span(to_physical_).subspan(row * most_, counts_[row]);
  }

 private:
  Placement placement_;
  int most_ = 0;
  std::vector<int32_t> to_physical_, counts_;
};

}  // namespace switchyard
