#include "model/state_storage.h"

#include <algorithm>
#include <utility>

#include "model/weights/shard.h"

namespace switchyard {
namespace {

// Floats of a layer's part of a slot: (inputs of the convolution, states of the heads).
std::pair<int64_t, int64_t> Floats(const ModelConfig& config, const Mesh& mesh) {
  const LinearAttentionConfig& c = *config.linear;
  const int64_t heads = LinearKeyHeads(c, mesh).size(), values = heads * c.group() * c.value_dim;
  return {(c.conv_width - 1) * (2 * heads * c.key_dim + values), values * c.key_dim};
}

}  // namespace

StateStorage::StateStorage(const ModelConfig& config, const Mesh& mesh, int64_t slots)
    : layers_(config.layers.size()), slots_(slots) {
  if (!config.has_states()) return;
  const auto [inputs, heads] = Floats(config, mesh);
  input_floats_ = inputs;
  slot_floats_ = inputs + heads;
  for (size_t i = 0; i < layers_.size(); ++i)
    if (config.layers[i].linear) layers_[i] = Tensor::Empty(DType::kF32, {slots, slot_floats_});
}

size_t StateStorage::BytesPerSlot(const ModelConfig& config, const Mesh& mesh) {
  if (!config.has_states()) return 0;
  const auto [inputs, heads] = Floats(config, mesh);
  const auto layers = std::ranges::count_if(config.layers, &LayerConfig::linear);
  return static_cast<size_t>(layers * (inputs + heads)) * sizeof(float);
}

}  // namespace switchyard
