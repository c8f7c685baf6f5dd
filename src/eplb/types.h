// Input and output types of placement planners: recorded loads, ranks, placements of all layers.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "moe/placement/placement.h"

namespace switchyard {

// Number of tokens routed to each logical expert, for each recorded step and MoE layer. A single
// step may also hold the sum of a whole recording. A value type.
struct LoadHistory {
  int steps = 0, layers = 0, experts = 0;
  std::vector<int32_t> counts;  // [steps, layers, experts], oldest step first
  // Number of passes whose counts a step sums, the mean over the steps. Only the costs of unequal
  // ranks depend on it.
  double passes = 1;
  int64_t AllPasses() const { return std::llround(passes * steps); }

  std::span<const int32_t> At(int step, int layer) const {
    return std::span(counts).subspan((static_cast<size_t>(step) * layers + layer) * experts,
                                     experts);
  }
  // Returns steps [begin, end).
  LoadHistory Steps(int begin, int end) const;
};

// The time that the experts of a rank take in a pass: `row` for each row (a token and one of its
// experts), and `expert` for each expert that has rows, to read its weights. `move`: the time by
// which it delays the rank to receive an expert's weights, such as bytes / link for an upload to a
// GPU; 0 on all ranks: unknown. Any unit of time, the same for all ranks.
struct RankCost {
  double row = 1, expert = 0, move = 0;

  bool operator==(const RankCost&) const = default;
};

// The EP ranks to which experts are assigned. A value type.
struct RankTopology {
  int ranks = 1;
  int nodes = 1;                // number of hosts; each has ranks / nodes consecutive ranks
  int groups = 1;               // expert groups of group-limited routing (n_group)
  std::vector<uint8_t> active;  // [ranks], 0: dead; empty: all alive
  // [ranks] number of slots of each rank, alive or dead; empty: equal parts (ExpertsOfRank).
  std::vector<int32_t> slots;
  std::vector<RankCost> costs;  // [ranks]; empty: each rank has RankCost()
  int sources = 0;              // number of ranks, the first ones, that have tokens; 0: all

  RankCost CostOf(int rank) const { return costs.empty() ? RankCost() : costs[rank]; }
  bool HasMoveCosts() const;  // whether RankCost::move is known
  // Whether the time of a rank is proportional to its rows, with the same factor on all ranks, and
  // slots are divided evenly.
  bool EqualRanks() const;
  bool Alive(int rank) const { return active.empty() || active[rank] != 0; }
  int NumAlive() const;
  int NodeOf(int rank) const { return static_cast<int>(int64_t{rank} * nodes / ranks); }
};

// Expert placement of all layers. A slot holds one physical expert. Slot p belongs to the rank
// given by LivingSlots, or by ExpertsOfRank (moe/placement/placement.h). Slots of dead ranks are −1
// and receive no tokens. A value type.
struct Placement {
  int layers = 0, physical = 0, logical = 0;
  std::vector<int32_t> physical_to_logical;  // [layers, physical]

  Placement() = default;
  // All slots −1.
  Placement(int layers, int physical, int logical);
  // Expert i % logical in slot i, in every layer.
  static Placement Trivial(int layers, int physical, int logical);

  std::span<const int32_t> Layer(int layer) const {
    return std::span(physical_to_logical).subspan(static_cast<size_t>(layer) * physical, physical);
  }
  std::span<int32_t> Layer(int layer) {
    return std::span(physical_to_logical).subspan(static_cast<size_t>(layer) * physical, physical);
  }
  // Converts a layer to the type that MoE layers use, which does not support dead ranks. Slots of
  // dead ranks get the experts of the trivial placement; no token may be sent to them.
  ExpertPlacement ToExpertPlacement(int layer) const;

  bool operator==(const Placement&) const = default;
};

// Error kInvalid in the following cases. A size is below 1, ranks are not divisible by nodes, or
// `active` has another length or no living rank. `slots` has another length or sum, or a number
// below 1. `costs` has another length, or a cost that is not positive. `sources` is not a number of
// ranks. All living ranks together have fewer slots than
// there are experts. One rank has more slots than there are experts, so that it would hold an
// expert twice.
void ValidateTopology(const RankTopology& topology, int physical, int logical);

// Throws Error kInvalid, which names layer and slot, in the following cases. The map has another
// size, an id is outside [−1, logical), a slot of a living rank is −1, or an expert has no slot on
// a living rank.
void ValidatePlacement(const Placement& placement, const RankTopology& topology);

// The slots of a living rank.
struct RankSlots {
  int rank = 0, node = 0;
  int begin = 0, end = 0;
  int size() const { return end - begin; }
};
// One entry for each living rank, ascending.
std::vector<RankSlots> LivingSlots(const RankTopology& topology, int physical);

// Number of experts whose weights ranks have to receive for placement `next`, because they do not
// hold them in placement `previous`.
struct Moves {
  int64_t same_node = 0;   // another rank of the node holds a replica
  int64_t other_node = 0;  // only ranks of other nodes hold one
  double time = 0;         // of the rank that takes longest to receive its experts (RankCost::move)
  int64_t total() const { return same_node + other_node; }
};
Moves CountMoves(const Placement& previous, const Placement& next, const RankTopology& topology);
Moves CountMoves(std::span<const int32_t> previous, std::span<const int32_t> next,
                 const RankTopology& topology, int num_logical);

}  // namespace switchyard
