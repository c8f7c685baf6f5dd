// Forward and backward pass of a model on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "train/batch.h"
#include "train/device/attention.h"
#include "train/device/feed_forward.h"
#include "train/device/linear.h"
#include "train/device/memory.h"
#include "train/device/ops.h"
#include "train/device/parameters.h"
#include "train/model.h"

namespace switchyard::train {

// Throws Error kInvalid, naming what is missing, for a model or losses that Model trains on CPUs
// and DeviceModel does not.
void CheckDeviceModel(const ModelConfig& config, const LossOptions& options);

// The whole model on one device, one micro-batch after the other. The host's model has the
// parameters' names, loads and initialises them, and checks batches; its values are uploaded at
// construction. Activations of a micro-batch are kept, except inputs of down projections and rows
// of experts, which the backward pass computes again.
//
// Hidden states between layers are float32, other activations have the dtype C. Owned by a rank;
// used by the rank's thread only.
template <typename C>
class DeviceModel {
 public:
  // `host` is a whole model on one rank. `ops` and `host` are borrowed. Throws errors of
  // CheckDeviceModel, and kResource if the device's memory does not suffice.
  DeviceModel(Model<float>& host, TrainOps<C>& ops);
  ~DeviceModel();

  DeviceParameters<C>& parameters() { return parameters_; }
  // Adds the gradients of a micro-batch to those of the parameters. Does not wait for the device.
  // Throws errors of Model::Begin, and kInvalid for given experts.
  void Learn(const Batch& batch, const StepSize& step);
  // The sum of the losses since the last call. Waits for the device.
  Losses TakeLosses();
  // The tokens of each expert, [MoE layers][experts], since the last call. Waits for the device.
  std::vector<std::vector<float>> TakeLoads();
  // Uploads selection biases that Model::MoveBiases has changed on the host.
  void UploadBiases();
  // Bytes of all arrays on the device, and of memory kept for later ones.
  int64_t bytes() const { return memory_.bytes(); }

 private:
  struct Layer {
    const Slab *input_norm, *post_norm;
    std::unique_ptr<DeviceAttention<C>> attention;
    std::optional<DeviceFeedForward<C>> dense;  // one of the two
    std::unique_ptr<DeviceMoe<C>> moe;
    int64_t loads_at = 0;  // index of the first expert in loads_
  };
  // Activations of a layer; m: rows of the micro-batch.
  struct State {
    DeviceArray<float> x, after;            // [m, H] input; input plus the output of attention
    DeviceArray<C> normed, after_normed;    // [m, H] their norms
    DeviceAttentionState<C> attention;
    DeviceArray<C> gate_up;  // of a dense layer
    DeviceMoeState<C> moe;
  };
  // The rows of the micro-batch in device memory.
  struct Rows {
    DeviceArray<int32_t> tokens, begins, positions, lengths;
    DeviceRows view;
  };

  Rows Upload(const DepthState<float>& depth);
  NormShape<float> Norm(int64_t m) const {
    return {.m = m, .n = hidden_, .ldx = hidden_, .eps = host_.config().norm_eps};
  }
  DeviceArray<C> Normed(const DeviceArray<float>& x, const Slab& gain);
  // Adds the gradient of the norm's input to `d`.
  void NormBackward(const DeviceArray<float>& x, const Slab& gain, const float* dy, bool accumulate,
                    DeviceArray<float>* d);
  DeviceArray<C> Rounded(const DeviceArray<float>& x);
  // Returns the layer's output.
  DeviceArray<float> Forward(Layer& layer, const Rows& rows, DeviceArray<float> x,
                             double step_tokens, State* state);
  // `d`: the gradient of the output, and after the call that of the input.
  void Backward(Layer& layer, const Rows& rows, State& state, DeviceArray<float>* d);
  // The gradient of the last layer's output x [m, H].
  DeviceArray<float> Heads(const DeviceArray<float>& x, const std::vector<int32_t>& targets,
                           const StepSize& step);

  Model<float>& host_;
  const int64_t hidden_;
  TrainOps<C>& ops_;
  DeviceMemory memory_;
  DeviceParameters<C> parameters_;
  const DeviceContext<C> on_;
  Pass<float> pass_;  // of the host: the rows of a batch
  DeviceArray<float> cos_sin_;
  const Slab *embedding_, *final_norm_;
  DeviceLinear<C> head_;
  std::vector<Layer> layers_;
  DeviceArray<int32_t> loads_;  // [MoE layers, E]
  // Losses of tokens since TakeLosses: cross-entropies with their factor, and balance losses.
  struct Pending {
    DeviceArray<float> losses;
    double scale = 1;
    bool balance = false;
  };
  std::vector<Pending> pending_;
};

}  // namespace switchyard::train
