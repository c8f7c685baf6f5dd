// Memory of a rank on a GPU that outlives epochs and the rank's process: weights and KV cache.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

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
// Whether they keep the KV cache too: with a prefix cache, and without recurrent states, which end
// with the epoch.
bool KeepsGpuCache(const EngineConfig& config, const EnginePlan& plan);

// The GPU memory of a rank. The parent holds the descriptors of this memory, so a new process of
// the rank maps it. A surviving process keeps its mapping. Owned by the rank's loop, used by the
// rank's thread.
class KeptGpuMemory {
 public:
  // Maps the memory that an earlier process of the rank has left, if it belongs to `key`, which
  // identifies the model and the rank. Otherwise the memory is new. Null if the GPU cannot share
  // memory. The rank's GPU becomes the current one. `kept`: valid.
  static std::unique_ptr<KeptGpuMemory> Open(const EngineConfig& config, const EnginePlan& plan,
                                             int rank, uint64_t key, KeptDescriptors kept);

  DeviceStore& weights() { return *weights_; }
  DeviceStore* cache() { return cache_.get(); }  // null: the cache ends with the epoch
  // Whether the cache has the contents of an earlier epoch.
  bool has_cache() const { return cache_ && cache_->filled(); }
  // Call when a model has placed its weights and has made its cache. Leaves the memory for the next
  // process.
  void Keep();
  // The next process gets no cache. Call before the cache is released.
  void DropCache();
  // The next process gets nothing. Call when this process has failed by itself.
  void Discard() noexcept;
  // Whether this process can take part in another epoch. Waits for the GPU.
  bool Usable();

 private:
  KeptGpuMemory(std::unique_ptr<DeviceStore> weights, std::unique_ptr<DeviceStore> cache,
                uint64_t key, KeptDescriptors kept)
      : weights_(std::move(weights)), cache_(std::move(cache)), key_(key), kept_(std::move(kept)) {}
  void Leave(bool with_cache);

  std::unique_ptr<DeviceStore> weights_, cache_;
  const uint64_t key_;
  KeptDescriptors kept_;
  bool left_ = false;  // kept_ has all that the next process may get
};

}  // namespace switchyard
