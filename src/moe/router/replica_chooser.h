// The interface that selects expert replicas per batch.
#pragma once

#include <cstdint>

#include "moe/placement/placement.h"
#include "moe/router/router.h"

namespace switchyard {

// The tokens of one round for which replicas are chosen. Its values are equal on ranks that route
// the same tokens.
struct RoundToChoose {
  uint64_t pass = 0;    // MoeState::pass
  int micro_batch = 0;  // MoeState::micro_batch
  int layer = 0;
  int64_t first_token = 0;  // index among the tokens that the rank routes in this micro-batch
};

// Called by the MoE layers of one rank (MoeBackend::ChooseReplicasBy), on the rank's thread. Ranks
// that route the same tokens must choose the same replicas. Without an all-to-all backend, all
// ranks route the same tokens; with one, the ranks of an MoE-TP group do.
class ReplicaChooser {
 public:
  virtual ~ReplicaChooser() = default;
  // Called with the layer's placement, before its first pass and after each change.
  virtual void OnPlacement(int layer, const ExpertPlacement& placement) = 0;
  // Maps the tokens of one round: fills *physical with physical experts, −1 where `logical` has −1.
  // The choice may depend only on the arguments and the placement, not on the order of calls,
  // because passes may be interleaved.
  virtual void Choose(const RoundToChoose& round, const TopK& logical, TopK* physical) = 0;
};

}  // namespace switchyard
