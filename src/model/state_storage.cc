#include "model/state_storage.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "core/check.h"
#include "kernels/compressed.h"
#include "kernels/device.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

// Floats of a layer's part of a slot: (inputs of the convolution, states of the heads), or with
// compressed attention, EntryFloats.
std::pair<int64_t, int64_t> Floats(const ModelConfig& config, const Mesh& mesh) {
  if (!config.has_linear()) {
    const EntryStates states = StateStorage::EntryFloats(config);
    return {states.entries, states.index};
  }
  const LinearAttentionConfig& c = *config.linear;
  const int64_t heads = LinearKeyHeads(c, mesh).size(), values = heads * c.group() * c.value_dim;
  return {(c.conv_width - 1) * (2 * heads * c.key_dim + values), values * c.key_dim};
}

// Bytes from the first slot of a layer to that of the next one, in memory for all of them.
size_t LayerStride(int64_t slots, int64_t slot_floats) {
  constexpr size_t kAlignment = 256;  // of a layer's first slot
  const size_t bytes = static_cast<size_t>(slots * slot_floats) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t LayersWithStates(const ModelConfig& config) {
  return static_cast<size_t>(std::ranges::count_if(config.layers, &LayerConfig::has_state));
}

}  // namespace

StateStorage::StateStorage(const ModelConfig& config, const Mesh& mesh, int64_t slots)
    : layers_(config.layers.size()), slots_(slots) {
  if (!config.has_states()) return;
  SetSizes(config, mesh);
  for (size_t i = 0; i < layers_.size(); ++i)
    if (config.layers[i].has_state())
      layers_[i] = Tensor::Empty(DType::kF32, {slots, slot_floats_});
}

StateStorage::StateStorage(const ModelConfig& config, const Mesh& mesh, int64_t slots,
                           kernels::Device& device)
    : layers_(config.layers.size()), slots_(slots) {
  if (!config.has_states() || slots == 0) return;
  SetSizes(config, mesh);
  const size_t bytes = LayersWithStates(config) * LayerStride(slots, slot_floats_);
  memory_ = device.AllocateReleasable(bytes);
  const std::shared_ptr<void> all =
      memory_ ? std::shared_ptr<void>(memory_, memory_->data()) : device.Allocate(bytes);
  Place(config, static_cast<std::byte*>(all.get()), all);
}

StateStorage::StateStorage(const ModelConfig& config, const Mesh& mesh, int64_t slots,
                           std::span<std::byte> memory)
    : layers_(config.layers.size()), slots_(slots) {
  CHECK_GE(memory.size(), Bytes(config, mesh, slots));
  if (!config.has_states() || slots == 0) return;
  SetSizes(config, mesh);
  Place(config, memory.data(), nullptr);
}

size_t StateStorage::Bytes(const ModelConfig& config, const Mesh& mesh, int64_t slots) {
  if (!config.has_states()) return 0;
  const auto [inputs, heads] = Floats(config, mesh);
  return LayersWithStates(config) * LayerStride(slots, inputs + heads);
}

EntryStates StateStorage::EntryFloats(const ModelConfig& config) {
  const AttentionConfig& a = config.attention;
  EntryStates most = config.whole_entry_states;
  for (const LayerConfig& layer : config.layers) {
    if (layer.compress == 0) continue;
    most.entries = std::max(most.entries, kernels::CompressStateFloats(a.head_dim, layer.overlaps));
    if (layer.overlaps)
      most.index = std::max(most.index, kernels::CompressStateFloats(a.index_head_dim, true));
  }
  return most;
}

void StateStorage::Place(const ModelConfig& config, std::byte* memory,
                         const std::shared_ptr<void>& owner) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!config.layers[i].has_state()) continue;
    layers_[i] = Tensor::View(memory, DType::kF32, {slots_, slot_floats_}, owner);
    memory += LayerStride(slots_, slot_floats_);
  }
}

void StateStorage::SetSizes(const ModelConfig& config, const Mesh& mesh) {
  const auto [inputs, heads] = Floats(config, mesh);
  input_floats_ = inputs;
  slot_floats_ = inputs + heads;
}

void StateStorage::Release() {
  if (memory_) memory_->Release();
}

void StateStorage::Restore() {
  if (memory_) memory_->Restore();
}

int64_t StateStorage::SlotFloats(const ModelConfig& config, const Mesh& mesh) {
  if (!config.has_states()) return 0;
  const auto [inputs, heads] = Floats(config, mesh);
  return inputs + heads;
}

size_t StateStorage::BytesPerSlot(const ModelConfig& config, const Mesh& mesh) {
  return LayersWithStates(config) * static_cast<size_t>(SlotFloats(config, mesh)) * sizeof(float);
}

}  // namespace switchyard
