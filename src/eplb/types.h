// What planners of placements take and give: recorded loads, the ranks, placements of all layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/placement.h"

namespace switchyard {

// Tokens that the router sent to each logical expert, for each recorded step and MoE layer. One
// step may as well stand for a whole recording (its sum). A value.
struct LoadHistory {
  int steps = 0, layers = 0, experts = 0;
  std::vector<int32_t> counts;  // [steps, layers, experts], oldest step first

  std::span<const int32_t> At(int step, int layer) const {
    return std::span(counts).subspan((static_cast<size_t>(step) * layers + layer) * experts,
                                     experts);
  }
  // Steps [begin, end).
  LoadHistory Steps(int begin, int end) const;
};

// The EP ranks that hold experts. A value.
struct RankTopology {
  int ranks = 1;
  int nodes = 1;                // hosts with ranks / nodes consecutive ranks each
  int groups = 1;               // of experts, as group-limited routing sees them (n_group)
  std::vector<uint8_t> active;  // [ranks], 0: dead; empty: all are alive

  bool Alive(int rank) const { return active.empty() || active[rank] != 0; }
  int NumAlive() const;
  int NodeOf(int rank) const { return static_cast<int>(int64_t{rank} * nodes / ranks); }
};

// Where the experts of all layers sit. Place p belongs to the rank that ExpertsOfRank says
// (moe/placement.h). Places of dead ranks are −1: nobody sends there. A value.
struct Placement {
  int layers = 0, physical = 0, logical = 0;
  std::vector<int32_t> physical_to_logical;  // [layers, physical]

  Placement() = default;
  // All places −1.
  Placement(int layers, int physical, int logical);
  // Expert i % logical at place i, in every layer.
  static Placement Trivial(int layers, int physical, int logical);

  std::span<const int32_t> Layer(int layer) const {
    return std::span(physical_to_logical).subspan(static_cast<size_t>(layer) * physical, physical);
  }
  std::span<int32_t> Layer(int layer) {
    return std::span(physical_to_logical).subspan(static_cast<size_t>(layer) * physical, physical);
  }
  // For the MoE layer, which knows no dead ranks: their places, to which no token may be sent, get
  // the experts that the trivial placement has there.
  ExpertPlacement ToExpertPlacement(int layer) const;

  bool operator==(const Placement&) const = default;
};

// Error kInvalid where sizes are below 1, nodes do not divide ranks, `active` has another length or
// no living rank, there are fewer places on living ranks than experts, or a rank has more places
// than there are experts (it would hold one twice).
void ValidateTopology(const RankTopology& topology, int physical, int logical);

// Error kInvalid naming the layer and place where the map is of another size, an id is outside
// [−1, logical), a place of a living rank is −1 or an expert has no place on a living rank.
void ValidatePlacement(const Placement& placement, const RankTopology& topology);

// The places of a living rank.
struct RankSlots {
  int rank = 0, node = 0;
  int begin = 0, end = 0;
  int size() const { return end - begin; }
};
// One for each living rank, ascending.
std::vector<RankSlots> LivingSlots(const RankTopology& topology, int physical);

// Experts whose weights a rank has to receive for `next`, because it does not hold them in
// `previous`.
struct Moves {
  int64_t same_node = 0;   // a replica sits on another rank of its node
  int64_t other_node = 0;  // only on other nodes
  int64_t total() const { return same_node + other_node; }
};
Moves CountMoves(const Placement& previous, const Placement& next, const RankTopology& topology);
Moves CountMoves(std::span<const int32_t> previous, std::span<const int32_t> next,
                 const RankTopology& topology, int num_logical);

}  // namespace switchyard
