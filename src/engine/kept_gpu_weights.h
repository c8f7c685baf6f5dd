// Weights of a rank on a GPU that outlive epochs and the rank's process.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/host/kept_descriptors.h"
#include "core/device_store.h"
#include "engine/config.h"

namespace switchyard {

// Whether ranks of the plan keep their weights in GPU memory that outlives their processes. The
// others load them again. They do not keep:
// - experts that move (--enable-eplb), because a record does not describe their placement;
// - draft models, and weights that the loader converts, such as those of 4 bits and of GGUF files;
// - stages of a pipeline, ranks beside experts on CPUs, and ranks of --disaggregation-mode.
bool KeepsGpuWeights(const EngineConfig& config, const EnginePlan& plan);

// The GPU memory of a rank's weights. The parent holds the descriptors of this memory, so a new
// process of the rank maps it. A surviving process keeps its mapping. Owned by the rank's loop,
// used by the rank's thread.
class KeptGpuWeights {
 public:
  // Maps the memory that an earlier process of the rank has left, if it belongs to `key`, which
  // identifies the model and the rank. Otherwise the memory is new. Null if the GPU cannot share
  // memory. The rank's GPU becomes the current one. `kept`: valid.
  static std::unique_ptr<KeptGpuWeights> Open(const EngineConfig& config, const EnginePlan& plan,
                                              int rank, uint64_t key, KeptDescriptors kept);

  DeviceStore& store() { return *store_; }
  // Call when a model has placed its weights. Leaves the memory for the next process.
  void Keep();
  // The next process loads the weights. Call it when this process has failed by itself.
  void Discard();
  // Whether this process can take part in another epoch. Waits for the GPU.
  bool Usable();

 private:
  KeptGpuWeights(std::unique_ptr<DeviceStore> store, uint64_t key, KeptDescriptors kept)
      : store_(std::move(store)), key_(key), kept_(std::move(kept)) {}

  std::unique_ptr<DeviceStore> store_;
  const uint64_t key_;
  KeptDescriptors kept_;
  bool left_ = false;  // the descriptors are in kept_
};

}  // namespace switchyard
