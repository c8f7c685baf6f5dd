// The interface that selects expert replicas per batch.
#pragma once

#include "moe/placement.h"
#include "moe/router.h"

namespace switchyard {

// Called by the MoE layers of one rank (MoeBackend::ChooseReplicasBy), on the rank's thread. Ranks
// that route the same tokens must choose alike. Without an all-to-all backend, those are all ranks;
// with one, the ranks of an MoE-TP group.
class ReplicaChooser {
 public:
  virtual ~ReplicaChooser() = default;
  // The layer's placement, before its first pass and after each change.
  virtual void OnPlacement(int layer, const ExpertPlacement& placement) = 0;
  // Maps the tokens of one round: fills *physical with physical experts, −1 where `logical` has −1.
  virtual void Choose(int layer, const TopK& logical, TopK* physical) = 0;
};

}  // namespace switchyard
