// Expert placement: the map from physical experts (slots of ranks) to logical experts (those of the
// model).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "moe/types.h"

namespace switchyard {

// Physical experts [begin, end) of EP rank `ep_rank`: contiguous ranges. `slots` [ep]: their
// lengths, whose sum is num_physical (MeshShape::expert_slots). If it is empty, the lengths differ
// by at most one.
Range ExpertsOfRank(int num_physical, int ep, int ep_rank, std::span<const int32_t> slots = {});
// Those of the mesh's own rank.
Range ExpertsOfRank(int num_physical, const Mesh& mesh);

// Selects the replica to which tokens of EP rank `rank` are sent (SGLang's
// logical_to_rank_dispatch_physical): a replica on the rank itself, else on its node, else
// anywhere. Ties rotate with rank + expert. `replicas`: the physical experts of `expert`, at least
// one. `rank_of`: [physical experts]. Each node holds `ranks_per_node` consecutive ranks.
int32_t NearReplica(std::span<const int32_t> replicas, int32_t expert, int rank,
                    std::span<const int> rank_of, int ranks_per_node);

// The placement of one layer, the same on every rank. Value type.
class ExpertPlacement {
 public:
  ExpertPlacement() = default;
  // Physical expert i is logical expert i. `redundant` further physical experts are replicas of
  // experts 0, 1, … in round-robin order.
  static ExpertPlacement Trivial(int num_logical, int redundant = 0);
  // Error kInvalid if an id is outside [0, num_logical) or a logical expert has no replica.
  ExpertPlacement(int num_logical, std::vector<int32_t> physical_to_logical);

  int num_logical() const { return num_logical_; }
  int num_physical() const { return static_cast<int>(physical_to_logical_.size()); }
  std::span<const int32_t> physical_to_logical() const { return physical_to_logical_; }
  bool is_identity() const { return identity_; }

  // [num_logical] the replica to which EP rank `ep_rank` sends tokens (NearReplica). `ep` must be
  // divisible by `nodes`. `slots`: as for ExpertsOfRank.
  std::vector<int32_t> ReplicasFor(int ep, int ep_rank, int nodes = 1,
                                   std::span<const int32_t> slots = {}) const;
  // [num_logical] one replica of each expert, the same on all ranks. Used if every rank has all
  // tokens. Replicas are selected round-robin over the experts.
  std::vector<int32_t> CommonReplicas() const;

 private:
  // [num_logical] the physical experts of each logical expert, ascending.
  std::vector<std::vector<int32_t>> AllReplicas() const;

  int num_logical_ = 0;
  std::vector<int32_t> physical_to_logical_;
  bool identity_ = true;
};

// Maps physical experts to their EP rank and local id. If the shared expert is dispatched, rank r's
// copy of it is the physical expert num_physical + r.
class ExpertMap {
 public:
  // `slots`: as for ExpertsOfRank.
  ExpertMap(int num_physical, int ep, bool shared_dispatched, std::span<const int32_t> slots = {});

  int size() const { return static_cast<int>(places_.size()); }
  int Owner(int32_t expert) const { return places_[expert].rank; }
  int32_t LocalId(int32_t expert) const { return places_[expert].local_id; }
  // The local id of `expert` on `rank`; −1 if another rank holds the expert or `expert` is −1.
  int32_t LocalIdOn(int rank, int32_t expert) const {
    return expert >= 0 && Owner(expert) == rank ? LocalId(expert) : -1;
  }
  int LocalExperts(int rank) const { return local_experts_[rank]; }
  int MaxLocalExperts() const { return std::ranges::max(local_experts_); }

 private:
  struct Place {
    int rank = 0;
    int32_t local_id = 0;
  };
  std::vector<Place> places_;
  std::vector<int> local_experts_;  // [ep] number of experts on each rank
};

}  // namespace switchyard
