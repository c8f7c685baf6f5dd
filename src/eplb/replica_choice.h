// Which replica of an expert a token goes to: `--ep-dispatch-algorithm`.
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
  kStatic,    // one replica for each rank and expert: near, and in turns
  kDynamic,   // any replica, at random
  kFake,      // any place, at random, whatever the router chose: for benchmarks
  kBalanced,  // a batch's tokens divided by water-filling (water_filling.h)
  kLp,        // the same, exactly (exact_balance.h): what balanced is judged by
};
// Error kInvalid lists the names: static, dynamic, fake, balanced, lp.
EpDispatchAlgorithm ParseEpDispatchAlgorithm(const std::string& name);

// [logical] the place that tokens of `rank` go to (NearReplica): what layers do themselves, by
// ExpertPlacement::ReplicasFor, where all ranks are alive.
std::vector<int32_t> StaticReplicas(const ExpertLocation& location, int layer,
                                    const RankTopology& topology, int rank);

// What a random choice is keyed by; nothing else decides it, so that it is the same on every rank
// and in every batch.
struct ChoiceKey {
  uint64_t seed = 0;
  int32_t layer = 0, slot = 0;  // slot: of the token's top-k
  int64_t token = 0;            // its position in the sequence, or another lasting number
};
int32_t DynamicReplica(std::span<const int32_t> replicas, const ChoiceKey& key);
// Different places for the slots of a token, if there are as many. `physical` places.
int32_t FakeExpert(int32_t physical, const ChoiceKey& key);

// Divides the tokens of a batch over places. One thread; keeps what it prepared for a layer of a
// placement, until Reset.
class BatchDivider {
 public:
  // `location` and `topology` outlive the divider or the next Reset. Ranks of a batch are taken to
  // bring equal parts of it (static). `offset`: the number of a divider among those that each
  // divide a batch of their own (balanced, lp: WaterFilling::Reset).
  void Reset(EpDispatchAlgorithm algorithm, const ExpertLocation& location, int layer,
             const RankTopology& topology, int offset = 0);
  // `counts` [logical] tokens of each expert, over all ranks; `shares` [physical] those of each
  // place, which add up to the counts (fake: to their sum). dynamic and fake: what is to be
  // expected.
  void Divide(std::span<const int32_t> counts, std::span<int32_t> shares);

 private:
  void DivideStatic(std::span<const int32_t> counts, std::span<int32_t> shares) const;
  void DivideEvenly(std::span<const int32_t> counts, std::span<int32_t> shares) const;
  void DivideFake(std::span<const int32_t> counts, std::span<int32_t> shares) const;

  EpDispatchAlgorithm algorithm_ = EpDispatchAlgorithm::kStatic;
  const ExpertLocation* location_ = nullptr;
  int layer_ = 0, bins_ = 0, offset_ = 0;
  std::vector<int32_t> bin_of_;  // [physical]
  // [logical, living ranks] kStatic: the place that each rank sends to.
  std::vector<int32_t> static_;
  WaterFilling filling_;
  std::vector<double> load_;
};

// The replica of the `ordinal`-th token of an expert in a batch (over all ranks, in their order):
// the first shares[replicas[0]] tokens go to replicas[0], and so on. `ordinal` is less than the sum
// of their shares.
int32_t ReplicaOfToken(std::span<const int32_t> replicas, std::span<const int32_t> shares,
                       int32_t ordinal);

}  // namespace switchyard
