// Attention with its projections, on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/range.h"
#include "model/config.h"
#include "model/families/family.h"
#include "train/device/linear.h"

namespace switchyard::train {

// Activations that a forward pass saves for its backward pass, as AttentionState.
template <typename C>
struct DeviceAttentionState {
  DeviceArray<C> q_a, q_a_normed, latent, latent_normed, kv;  // MLA
  DeviceArray<C> q_raw, k_raw;  // q and k before their norms; empty if there are no norms
  DeviceArray<C> q, k, v, attended;
  DeviceArray<float> log_sums;
};

// Owned by its model; used by the rank's thread only.
template <typename C>
class DeviceAttention {
 public:
  virtual ~DeviceAttention() = default;
  // The part of the forward pass in which each row of x [m, H] is on its own, for rows `part`.
  // Called for parts of all rows, in ascending order, before Forward.
  virtual void Project(const Range& part, int64_t m, const C* x,
                       DeviceAttentionState<C>* state) = 0;
  // The rest of it; adds the output to `out` [m, H].
  virtual void Forward(const DeviceRows& rows, DeviceAttentionState<C>* state, float* out) = 0;
  // Writes dx [m, H]; adds to the gradients of the weights. The state is invalid afterwards.
  virtual void Backward(const DeviceRows& rows, const C* x, DeviceAttentionState<C>& state,
                        const C* dout, float* dx) = 0;
};

template <typename C>
struct DeviceAttentionParts {
  const ModelConfig& config;
  const TensorNames& names;
  std::string prefix;  // "model.layers.3."
  int32_t window = 0;
  const float* cos_sin = nullptr;  // table of BuildCosSin in device memory
  const DeviceContext<C>& on;
};

// Grouped-query or latent attention (layers/attention_layers.h), by config. Places its parameters.
template <typename C>
std::unique_ptr<DeviceAttention<C>> MakeDeviceAttention(const DeviceAttentionParts<C>& parts);

}  // namespace switchyard::train
