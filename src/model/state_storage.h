// Memory of recurrent states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/mesh.h"
#include "core/tensor.h"
#include "model/config.h"

namespace switchyard {

namespace kernels {
class Device;
class ReleasableMemory;
}  // namespace kernels

// Slots for the states of the layers with linear attention, float32. A slot has for each of these
// layers the last inputs of its convolution, then the states of its heads (kernels/recurrent.h).
// With compressed attention, it has for each layer with entries the state of the unfinished block
// of entries (`inputs`), then that of index entries (`heads`). The engine assigns the slots to
// sequences and prefixes (ForwardBatch::states); the model writes them. Each attention group has
// its own states, sharded over its ranks by key heads; those of compressed attention are the same
// on all ranks. Copies of this object share the memory.
class StateStorage {
 public:
  StateStorage() = default;
  // In host memory.
  StateStorage(const ModelConfig& config, const Mesh& mesh, int64_t slots);
  // In `memory`, at least Bytes bytes at a multiple of 64, whose contents stay. The memory must
  // outlive the storage.
  StateStorage(const ModelConfig& config, const Mesh& mesh, int64_t slots,
               std::span<std::byte> memory);
  static size_t Bytes(const ModelConfig& config, const Mesh& mesh, int64_t slots);
  // In the memory of `device`, zeroed. If the device supports it, the memory is releasable. Error
  // kResource if there is too little.
  StateStorage(const ModelConfig& config, const Mesh& mesh, int64_t slots, kernels::Device& device);
  static size_t BytesPerSlot(const ModelConfig& config, const Mesh& mesh);  // on one rank
  // The states of unfinished blocks in the layers of `config`, or of the whole model if `config` is
  // that of a stage (ModelConfig::whole_entry_states).
  static EntryStates EntryFloats(const ModelConfig& config);
  // slot_floats() of such a storage.
  static int64_t SlotFloats(const ModelConfig& config, const Mesh& mesh);

  int64_t slots() const { return slots_; }
  // The address of slot 0 in a layer. Slot s is s · slot_floats() floats after it.
  float* inputs(int64_t layer) { return layers_[layer].data<float>(); }
  float* heads(int64_t layer) { return inputs(layer) + input_floats_; }
  int64_t slot_floats() const { return slot_floats_; }

  // Frees the memory, or allocates it again with zeros, at the same addresses. The caller drops all
  // states. Do nothing if the memory is not releasable. Errors of kernels::ReleasableMemory.
  void Release();
  void Restore();

 private:
  void SetSizes(const ModelConfig& config, const Mesh& mesh);
  // Makes the views of the layers in memory for all of them.
  void Place(const ModelConfig& config, std::byte* memory, const std::shared_ptr<void>& owner);

  std::shared_ptr<kernels::ReleasableMemory> memory_;  // of all layers, if it is releasable
  std::vector<Tensor> layers_;  // [slots, slot_floats]; undefined: the layer has no states
  int64_t slots_ = 0, input_floats_ = 0, slot_floats_ = 0;
};

}  // namespace switchyard
