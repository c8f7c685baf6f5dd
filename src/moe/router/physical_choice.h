// Mapping of the router's logical experts to physical experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/placement/placement.h"
#include "moe/router/router.h"

namespace switchyard {

// Maps ids to physical experts: logical expert i becomes replicas[i]
// (ExpertPlacement::ReplicasFor), and −1 remains −1.
void ToPhysical(std::span<const int32_t> replicas, const TopK& logical, TopK* physical);

// Appends to every token a slot for the shared expert of one rank (--enable-deepep-waterfill).
// `weights` [tokens]: the weights of these slots; null: 1. For each token, selects the rank with
// the fewest rows of these tokens so far, routed and shared. Ties go to this rank, which transfers
// nothing; then to a rank that already receives the token's row; then to the lowest rank. Skips
// ranks with 0 in `active`; if it is empty, all ranks are active.
void AppendSharedSlots(const ExpertMap& experts, int ranks, int this_rank,
                       std::span<const uint8_t> active, const float* weights, TopK* physical);

// The interface that selects expert replicas per batch.

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
