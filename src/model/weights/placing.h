// Copies weights to the compute device.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/gpus.h"
#include "model/weights.h"

namespace switchyard {

// Replaces every view and tensor by its copy on `device`, layer by layer, so that converted host
// memory is freed on the way. Routed and shared experts are skipped: their layer places them
// (moe/cuda_moe.h). Does nothing for a CPU.
void UploadWeights(kernels::Device& device, ModelWeights& weights);

// Until Finish, weights are placed in a store. `store`: of ModelOptions; null: in other memory of
// the device.
class PlacingInStore {
 public:
  PlacingInStore(kernels::Device& device, DeviceStore* store);
  ~PlacingInStore();
  PlacingInStore(const PlacingInStore&) = delete;
  void Finish();  // when all weights are placed; waits for the device if there is a store

 private:
  kernels::Device& device_;
  DeviceStore* store_;
};

// A copy of the views and tensors, which share the memory of the weights. `movable`: without routed
// experts.
std::shared_ptr<const ModelWeights> CopyToKeep(const ModelWeights& weights, bool movable);

// Sets the embedding and the head of an EAGLE head to those of the target, if its checkpoint has
// none. `reduced_head`: the head has rows of some tokens only, and is not replaced.
void ShareVocabulary(const EagleConfig& eagle, bool reduced_head, const ModelWeights* target,
                     ModelWeights* weights);

// The arrays of the weights that UploadWeights has placed on a GPU, with names such as
// "layers.0.attention.q" and "head.scales". Without MoE layers, which place their own weights, and
// without ModelWeights::hidden_input.
std::vector<kernels::DeviceArray> PlacedArrays(const ModelWeights& weights);

}  // namespace switchyard
