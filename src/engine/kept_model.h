// What a rank keeps of a model from one epoch to the next.
#pragma once

#include <memory>
#include <optional>

#include "engine/config.h"
#include "model/model.h"

namespace switchyard {

// Empty in the first epoch. Stays empty on GPUs, and if experts move. Owned by the rank's loop,
// outlives the model.
class KeptModel {
 public:
  // For ModelOptions::weights.
  std::shared_ptr<const ModelWeights> weights() const { return weights_; }
  // Keep returns this cache.
  void Use(const KvStorage& kv) { kv_ = kv; }
  // The cache for `model`: that of Use, or one with the memory of the last epoch's cache if that
  // was kept. Keeps the cache and the weights of `model` for the next epoch.
  KvStorage Keep(Model& model, const EnginePlan& plan, int32_t page_size);

 private:
  std::shared_ptr<const ModelWeights> weights_;
  std::optional<KvStorage> kv_;
};

}  // namespace switchyard
