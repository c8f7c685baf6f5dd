// What a rank keeps of a model from one epoch to the next.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/active_layout.h"
#include "engine/config.h"
#include "model/model.h"

namespace switchyard {

// Empty in the first epoch. Stays empty on GPUs, and on ranks with expert migration. Owned by the
// rank's loop; outlives the model.
class KeptModel {
 public:
  // The kept weights, for ModelOptions::weights; null: none.
  std::shared_ptr<const ModelWeights> weights() const { return weights_; }
  // Loads the weights to keep, without other ranks, unless there are any. On CPUs only.
  void Load(const EngineConfig& config, const EnginePlan& plan, int rank);
  // The weights of an epoch with the ranks `active` only, in their layout: the kept weights, and
  // the experts that the rank has in this layout only. These are loaded once per set of ranks.
  // Before each of them, `check` is called, which may throw. Requires kept weights.
  std::shared_ptr<const ModelWeights> WeightsOfActive(const ActiveLayout& layout, int rank,
                                                      const std::vector<int>& active,
                                                      const std::function<void()>& check);
  // Frees what WeightsOfActive has loaded.
  void DropExperts() { active_weights_.reset(); }
  // Sets the cache that Keep returns.
  void Use(const KvStorage& kv) { kv_ = kv; }
  // Returns the cache for `model`: the cache set by Use, else the cache kept from the last epoch,
  // else a new one. Keeps this cache and the weights of `model` for the next epoch, unless there
  // are kept weights, or the model has none to keep.
  KvStorage Keep(Model& model, const EnginePlan& plan, int32_t page_size);

 private:
  std::shared_ptr<const ModelWeights> weights_;
  std::shared_ptr<const ModelWeights> active_weights_;
  std::vector<int> active_;  // the ranks of active_weights_
  std::optional<KvStorage> kv_;
};

}  // namespace switchyard
