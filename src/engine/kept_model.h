// What a rank keeps of a model from one epoch to the next.
#pragma once

#include <memory>
#include <optional>

#include "engine/config.h"
#include "model/model.h"

namespace switchyard {

// Empty in the first epoch. Stays empty on GPUs, and on ranks with expert migration. Owned by the
// rank's loop; outlives the model.
class KeptModel {
 public:
  // The kept weights, for ModelOptions::weights; null: none.
  std::shared_ptr<const ModelWeights> weights() const { return weights_; }
  // Sets the cache that Keep returns.
  void Use(const KvStorage& kv) { kv_ = kv; }
  // Returns the cache for `model`: the cache set by Use, else the cache kept from the last epoch,
  // else a new one. Keeps this cache and the weights of `model` for the next epoch, unless the
  // model has no weights to keep.
  KvStorage Keep(Model& model, const EnginePlan& plan, int32_t page_size);

 private:
  std::shared_ptr<const ModelWeights> weights_;
  std::optional<KvStorage> kv_;
};

}  // namespace switchyard
