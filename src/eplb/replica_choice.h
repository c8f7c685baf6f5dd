// Selects the replicas of experts for the rows of a batch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eplb/types.h"
#include "eplb/water_filling.h"

namespace switchyard {

// Logical-to-physical expert maps of a placement: the slots of each expert.

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

// Computes the exact minimum of the maximum rank load over all divisions of a batch. It is the
// reference for heuristics.

// Divides `load` [experts] (whole tokens) over replicas. `shares` [slots] sum to each expert's load
// and minimize the maximum load of a bin, which is returned. `bin_of` [slots]: −1 for an unused
// slot; every expert with load has a slot. `offset`, not negative: selects which of several equally
// good replicas is filled first (as in WaterFilling).
//
// Solves the linear program  min t : Σ_e x_eb ≤ t,  Σ_b x_eb = load_e,  x ≥ 0  in whole tokens. For
// a fixed t the program is feasible if the maximum flow from experts, over their replicas, to bins
// of capacity t carries all load. t is found by binary search. The maximum flow is found by
// shortest augmenting paths (Dinic 1970). About 0.3 ms for a layer: meant for benchmarks and tests,
// not for every batch.
int64_t ExactBalance(int num_bins, std::span<const int32_t> bin_of,
                     std::span<const int32_t> expert_of, std::span<const int32_t> load,
                     std::span<int32_t> shares, int offset = 0);

// Selects the replica of an expert for each token: `--ep-dispatch-algorithm`.

enum class EpDispatchAlgorithm {
  kStatic,    // one fixed replica for each rank and expert: near the rank, round-robin among ties
  kDynamic,   // a uniformly random replica
  kFake,      // a uniformly random slot, ignoring the router's choice: for benchmarks
  kBalanced,  // divides a batch's tokens by water-filling (water_filling.h)
  kLp,        // the exact division (ExactBalance): the reference for kBalanced
};
// Error kInvalid lists the names: static, dynamic, fake, balanced, lp.
EpDispatchAlgorithm ParseEpDispatchAlgorithm(const std::string& name);

// [logical] the slot to which `rank` sends its tokens of each expert (NearReplica). Layers use
// ExpertPlacement::ReplicasFor, which gives the same slots if all ranks are alive.
std::vector<int32_t> StaticReplicas(const ExpertLocation& location, int layer,
                                    const RankTopology& topology, int rank);

// Key of a random choice. The choice depends on its key only. So equal keys give the same choice on
// every rank and in every batch.
struct ChoiceKey {
  uint64_t seed = 0;
  int32_t layer = 0, slot = 0;  // slot: index in the token's top-k
  int64_t token = 0;            // its position in the sequence, or another stable index
};
int32_t DynamicReplica(std::span<const int32_t> replicas, const ChoiceKey& key);
// `fake` dispatch: returns the slot for one top-k entry of a token. The top-k entries of a token
// get different slots if there are enough slots. `physical`: number of slots.
int32_t FakeExpert(int32_t physical, const ChoiceKey& key);

// Divides the tokens of a batch over slots. Single-threaded. Keeps the state that depends on one
// layer's placement until the next Reset.
class BatchDivider {
 public:
  // `location` and `topology` must outlive the divider or last until the next Reset. kStatic
  // assumes that the ranks with tokens (RankTopology::sources) contribute equal parts of a batch.
  // kBalanced minimizes the largest time of a rank's rows (RankCost::row). Error kInvalid for kLp
  // if the ranks have costs. If several dividers each divide their own
  // batch, `offset` is the index of this divider among them (used by balanced and lp, see
  // WaterFilling::Reset).
  void Reset(EpDispatchAlgorithm algorithm, const ExpertLocation& location, int layer,
             const RankTopology& topology, int offset = 0);
  // `counts` [logical] tokens of each expert, over all ranks. `shares` [physical] tokens of each
  // slot, which sum to the counts (fake: to their total). For dynamic and fake the shares are
  // expected values.
  void Divide(std::span<const int32_t> counts, std::span<int32_t> shares);

 private:
  void DivideStatic(std::span<const int32_t> counts, std::span<int32_t> shares) const;
  void DivideEvenly(std::span<const int32_t> counts, std::span<int32_t> shares) const;
  void DivideFake(std::span<const int32_t> counts, std::span<int32_t> shares) const;

  EpDispatchAlgorithm algorithm_ = EpDispatchAlgorithm::kStatic;
  const ExpertLocation* location_ = nullptr;
  int layer_ = 0, bins_ = 0, offset_ = 0;
  int sources_ = 0;              // number of living ranks with tokens, the first ones
  std::vector<int32_t> bin_of_;  // [physical]
  // [logical, living ranks] kStatic: the slot to which each rank sends an expert's tokens.
  std::vector<int32_t> static_;
  WaterFilling filling_;
  std::vector<double> load_;
};

// The replica of the `ordinal`-th token of an expert in a batch (over all ranks, in rank order).
// The first shares[replicas[0]] tokens go to replicas[0], and so on. `ordinal` must be less than
// the sum of their shares.
int32_t ReplicaOfToken(std::span<const int32_t> replicas, std::span<const int32_t> shares,
                       int32_t ordinal);

}  // namespace switchyard
