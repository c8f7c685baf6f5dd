#include "eplb/batch_replicas.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace switchyard {

BatchReplicas::BatchReplicas(EpDispatchAlgorithm algorithm, const Mesh& mesh, bool scatters,
                             std::vector<RankCost> costs)
    : algorithm_(algorithm),
      topology_{.ranks = mesh.ep(), .slots = mesh.shape().expert_slots, .costs = std::move(costs)},
      seed_(scatters ? static_cast<uint64_t>(mesh.ep_rank()) : 0) {
  CHECK(algorithm != EpDispatchAlgorithm::kStatic);
}

void BatchReplicas::OnPlacement(int layer, const ExpertPlacement& placement) {
  Layer& state = layers_[layer];
  Placement one(1, placement.num_physical(), placement.num_logical());
  std::ranges::copy(placement.physical_to_logical(), one.physical_to_logical.begin());
  state.location = ExpertLocation(one);
  state.divider.Reset(algorithm_, state.location, 0, topology_, static_cast<int>(seed_));
}

void BatchReplicas::Choose(const RoundToChoose& round, const TopK& logical, TopK* physical) {
  Layer& state = layers_.at(round.layer);
  physical->tokens = logical.tokens;
  physical->k = logical.k;
  physical->weights = logical.weights;
  physical->ids.resize(logical.ids.size());
  if (algorithm_ == EpDispatchAlgorithm::kDynamic || algorithm_ == EpDispatchAlgorithm::kFake) {
    ChooseAtRandom(round, state, logical, physical);
  } else {
    Divide(state, logical, physical);
  }
}

// The pass number is part of a token's key. A token at the same position therefore has another key
// in every pass, so that it does not always choose the same replica of an expert.
void BatchReplicas::ChooseAtRandom(const RoundToChoose& round, const Layer& layer,
                                   const TopK& logical, TopK* physical) const {
  constexpr int kTokenBits = 32;
  const auto batch = static_cast<int64_t>(2 * round.pass + (round.micro_batch != 0 ? 1 : 0));
  const int64_t first = (batch << kTokenBits) + round.first_token;
  for (size_t i = 0; i < logical.ids.size(); ++i) {
    const int32_t id = logical.ids[i];
    const ChoiceKey key{.seed = seed_,
                        .layer = round.layer,
                        .slot = static_cast<int32_t>(i % logical.k),
                        .token = first + static_cast<int64_t>(i) / logical.k};
    physical->ids[i] = id < 0 ? -1
                       : algorithm_ == EpDispatchAlgorithm::kFake
                           ? FakeExpert(layer.location.num_physical(), key)
                           : DynamicReplica(layer.location.Replicas(0, id), key);
  }
}

void BatchReplicas::Divide(Layer& layer, const TopK& logical, TopK* physical) {
  counts_.assign(layer.location.num_logical(), 0);
  ordinal_.assign(counts_.size(), 0);
  shares_.assign(layer.location.num_physical(), 0);
  for (const int32_t id : logical.ids)
    if (id >= 0) ++counts_[id];
  layer.divider.Divide(counts_, shares_);
  for (size_t i = 0; i < logical.ids.size(); ++i) {
    const int32_t id = logical.ids[i];
    physical->ids[i] =
        id < 0 ? -1 : ReplicaOfToken(layer.location.Replicas(0, id), shares_, ordinal_[id]++);
  }
}

}  // namespace switchyard
