// Who chooses, batch by batch, which replica of an expert a token goes to.
#pragma once

#include "moe/placement.h"
#include "moe/router.h"

namespace switchyard {

// The MoE layers of one rank call it (MoeRuntime::ChooseReplicasBy), on the rank's thread. Ranks
// that route the same tokens (all of them without an all-to-all, else those of a MoE-TP group) must
// choose alike.
class ReplicaChooser {
 public:
  virtual ~ReplicaChooser() = default;
  // Where the layer's experts sit, before its first pass and whenever they have moved.
  virtual void OnPlacement(int layer, const ExpertPlacement& placement) = 0;
  // The tokens of one round: fills *physical with places, −1 where `logical` has −1.
  virtual void Choose(int layer, const TopK& logical, TopK* physical) = 0;
};

}  // namespace switchyard
