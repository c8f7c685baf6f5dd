// Forward and backward pass of a model on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "train/batch.h"
#include "train/device/attention.h"
#include "train/device/feed_forward.h"
#include "train/device/linear.h"
#include "train/device/memory.h"
#include "train/device/ops.h"
#include "train/device/parameters.h"
#include "train/device/ranks.h"
#include "train/device/row_exchange.h"
#include "train/model.h"

namespace switchyard::train {

// The model on the device of a rank, one micro-batch after the other. Ranks have different rows;
// experts may be divided among them, and all other parameters are on every rank. The host's model
// has the parameters' names, loads and initialises them, and checks batches; its values are
// uploaded at construction. Activations of a micro-batch are kept, except inputs of down
// projections and rows of experts, which the backward pass computes again.
//
// Hidden states between layers are float32, other activations have the dtype C. Owned by a rank;
// used by the rank's thread only.
template <typename C>
class DeviceModel {
 public:
  // `host` has the experts of this rank. The first three arguments are borrowed. Throws errors of
  // CheckDeviceModel and DeviceParameters::Place, and kResource if the device's memory does not
  // suffice.
  DeviceModel(Model<float>& host, TrainOps<C>& ops, DeviceRanks& ranks,
              const DeviceOptions& options = {});
  ~DeviceModel();

  DeviceParameters<C>& parameters() { return parameters_; }
  // Adds the gradients of a micro-batch to those of the parameters. Collective: some ranks may have
  // empty batches. Waits for the hosts of the other ranks, but not for the device.
  // `last_of_step`: sums of gradients start during the backward pass; complete them with
  // DeviceParameters::SumGradients. Throws errors of Model::Begin.
  void Learn(const Batch& batch, const StepSize& step, bool last_of_step = false);
  // The sum of the losses since the last call. Waits for the device.
  Losses TakeLosses();
  // Tokens of each expert, [MoE layers][experts], since the last call; their sum over all ranks
  // counts each token once. Waits for the device.
  std::vector<std::vector<float>> TakeLoads();
  // Those of Model::replay since the last call. Waits for the device.
  Model<float>::ReplayCounts TakeReplay();
  // Uploads selection biases that Model::MoveBiases has changed on the host.
  void UploadBiases();
  // Bytes of all arrays on the device, and of memory kept for later ones.
  int64_t bytes() const { return memory_.bytes(); }

 private:
  struct Layer {
    int index = 0;  // in the model, MTP modules last
    const Slab *input_norm, *post_norm;
    std::unique_ptr<DeviceAttention<C>> attention;
    std::optional<DeviceFeedForward<C>> dense;  // one of the two
    std::unique_ptr<DeviceMoe<C>> moe;
    int64_t loads_at = 0;  // index of the first expert in loads_
    Range slabs;           // of DeviceParameters
  };
  // The output of a layer [m, H], of which a part may still be on its way from other ranks.
  struct Hidden {
    DeviceArray<float> x;
    DeviceRowSums sums;  // to be added to x
  };
  struct MtpModule {
    const Slab *embedding_norm, *hidden_norm;
    DeviceLinear<C> projection;  // [H, 2 H]
  };
  // Activations of a layer; m: rows of the micro-batch.
  struct State {
    DeviceArray<float> x, after;          // [m, H] input; input plus the output of attention
    DeviceArray<C> normed, after_normed;  // [m, H] their norms
    DeviceAttentionState<C> attention;
    DeviceArray<C> gate_up;  // of a dense layer
    DeviceMoeState<C> moe;
  };
  // The rows of a prediction depth in device memory.
  struct Rows {
    DeviceArray<int32_t> tokens, begins, positions, lengths;
    std::vector<int64_t> of_ranks;  // DeviceRows::of_ranks
    DeviceRows view;
    bool empty() const { return view.m == 0; }
  };
  // A prediction depth as in DepthState; m: its rows.
  struct Depth {
    Rows rows;
    DeviceArray<float> last, dfinal;  // [m, H] the last layer's output; gradient of `final`
    DeviceArray<C> final;             // [m, H] norm of `last`
    // Only MTP: inputs of the module [m, H], and both after their norms [m, 2 H].
    DeviceArray<float> embedded, previous;
    DeviceArray<C> joined;
  };

  void AddLayer(int64_t index, const TensorNames& names, int64_t* loads);
  // The rows of all ranks at each depth of a micro-batch, [depths][ranks], of the depths at which
  // some rank has rows.
  std::vector<std::vector<int64_t>> RowsOfRanks(std::span<const DepthState<float>> depths);
  Rows Upload(const DepthState<float>& depth, const std::vector<int64_t>& of_ranks);
  NormShape<float> Norm(int64_t m) const {
    return {.m = m, .n = hidden_, .ldx = hidden_, .eps = host_.config().norm_eps};
  }
  DeviceArray<C> Normed(const DeviceArray<float>& x, const Slab& gain);
  // The same of the output of a layer, and use(rows, result) of each part of its rows once the part
  // has arrived. Then x is complete.
  template <typename Use>
  DeviceArray<C> NormedParts(Hidden* x, const Slab& gain, const Use& use);
  // Writes the gradient of the norm's input to `d`, or adds it.
  void NormBackward(const DeviceArray<float>& x, const Slab& gain, const float* dy, bool accumulate,
                    DeviceArray<float>* d);
  DeviceArray<C> Rounded(const DeviceArray<float>& x);
  DeviceArray<float> Embedded(const Rows& rows);
  // Returns the layer's output.
  Hidden Forward(Layer& layer, const Rows& rows, Hidden x, const int32_t* given, double step_tokens,
                 State* state);
  // The experts that the batch gives to its tokens in a layer of the model [m, k]; empty: none.
  DeviceArray<int32_t> GivenExperts(const DepthState<float>& host, size_t layer);
  // `d`: the gradient of the output, and after the call that of the input. Starts the sums of
  // complete_ where they run beside attention, which exchanges nothing.
  void Backward(Layer& layer, const Rows& rows, State& state, DeviceArray<float>* d);
  void StartSums();
  // The input of an MTP module's layer. `before`: the previous depth.
  DeviceArray<float> Join(const MtpModule& module, const std::vector<int32_t>& source,
                          const Depth& before, Depth* depth);
  // `d`: the gradient of Join's result. Adds to the previous depth's dfinal.
  void JoinBackward(const MtpModule& module, const DepthState<float>& host, const Depth& depth,
                    const DeviceArray<float>& d, Depth* before);
  // Computes dfinal. `scale`: of the losses, which are a part of Losses.
  void Head(const std::vector<int32_t>& targets, double scale, double Losses::*part, Depth* depth);

  Model<float>& host_;
  const int64_t hidden_;
  TrainOps<C>& ops_;
  DeviceRanks& ranks_;
  DeviceMemory memory_;
  DeviceParameters<C> parameters_;
  const DeviceContext<C> on_;
  Pass<float> pass_;  // of the host: the rows of a batch
  DeviceArray<float> cos_sin_;
  const Slab* embedding_;
  std::vector<const Slab*> final_norms_;  // of each depth
  DeviceLinear<C> head_;
  Range head_slabs_;  // of the head's own weight; empty: it is the embedding
  Range complete_;    // slabs with the gradients of the whole step, whose sums have not started
  std::vector<Layer> layers_;  // layers of the model, then those of the MTP modules
  std::vector<MtpModule> mtp_;
  DeviceArray<int32_t> loads_;   // [MoE layers, E]
  DeviceArray<int32_t> replay_;  // [2] of TrainOps::GiveExperts
  // Losses of tokens since TakeLosses, the factor of their sum, and the sum of which they are part.
  struct Pending {
    DeviceArray<float> losses;
    double scale = 1;
    double Losses::*part = nullptr;
  };
  std::vector<Pending> pending_;
};

}  // namespace switchyard::train
