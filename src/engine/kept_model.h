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
  // The cache for `model`, with the memory of the last epoch's cache if that was kept. Its contents
  // are not valid. Keeps the cache and the weights of `model` for the next epoch.
  KvStorage Keep(Model& model, const EnginePlan& plan, int32_t page_size);

 private:
  std::shared_ptr<const ModelWeights> weights_;
  std::optional<KvStorage> kv_;
};

}  // namespace switchyard
