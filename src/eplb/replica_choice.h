// Selects the replica of an expert for each token: `--ep-dispatch-algorithm`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eplb/location.h"
#include "eplb/types.h"
#include "eplb/water_filling.h"

namespace switchyard {

enum class EpDispatchAlgorithm {
  kStatic,    // one fixed replica for each rank and expert: near the rank, round-robin among ties
  kDynamic,   // a uniformly random replica
  kFake,      // a uniformly random slot, ignoring the router's choice: for benchmarks
  kBalanced,  // divides a batch's tokens by water-filling (water_filling.h)
  kLp,        // the exact division (exact_balance.h): the reference for kBalanced
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
  // assumes that ranks contribute equal parts of a batch. If several dividers each divide their own
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
