// Dense and MoE feed-forward layers on a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/config.h"
#include "model/families/family.h"
#include "train/device/linear.h"
#include "train/device/row_exchange.h"

namespace switchyard::train {

// A SwiGLU network, or those of all experts. Gate and up are one layer with 2 I outputs.
template <typename C>
class DeviceFeedForward {
 public:
  DeviceFeedForward(DeviceLinear<C> gate_up, DeviceLinear<C> down)
      : gate_up_(gate_up), down_(down) {}
  // Places gate, up and down of one network.
  static DeviceFeedForward Make(const DeviceContext<C>& on, const std::string& gate,
                                const std::string& up, const std::string& down, int64_t hidden,
                                int64_t width);

  // x [rows, H]; gate_up [rows, 2 I] is saved for the backward pass. Returns the input of down.
  DeviceArray<C> Middle(const DeviceContext<C>& on, int64_t rows, const C* x,
                        DeviceArray<C>* gate_up, const int32_t* offsets = nullptr) const;
  // Returns [rows, H].
  DeviceArray<C> Forward(const DeviceContext<C>& on, int64_t rows, const C* x,
                         DeviceArray<C>* gate_up, const int32_t* offsets) const;
  // Adds the output to y [rows, H].
  void ForwardSum(const DeviceContext<C>& on, int64_t rows, const C* x, DeviceArray<C>* gate_up,
                  float* y) const;
  // Adds to the gradients of the weights. dx [rows, H]. gate_up becomes its gradient.
  void Backward(const DeviceContext<C>& on, int64_t rows, const C* x, DeviceArray<C>* gate_up,
                const C* dout, float* dx, bool accumulate) const;
  // The three parts of Backward. The first computes the input of down again, which is not saved;
  // the last reads it, and the gradient in gate_up.
  DeviceArray<C> MiddleAgain(const DeviceContext<C>& on, int64_t rows,
                             const DeviceArray<C>& gate_up, const int32_t* offsets = nullptr) const;
  void BackwardInputs(const DeviceContext<C>& on, int64_t rows, DeviceArray<C>* gate_up,
                      const C* dout, float* dx, bool accumulate,
                      const int32_t* offsets = nullptr) const;
  void BackwardWeights(const DeviceContext<C>& on, int64_t rows, const C* x, const C* middle,
                       const C* dgate_up, const C* dout, const int32_t* offsets = nullptr) const;

 private:
  GateUpShape ShapeOf(int64_t rows, const int32_t* offsets) const {
    return {.m = rows,
            .n = down_.k,
            .valid_rows = offsets == nullptr ? nullptr : offsets + down_.groups};
  }

  DeviceLinear<C> gate_up_, down_;
};

// Activations that a forward pass saves for its backward pass. n: the tokens of all ranks with
// different experts; without such ranks m.
template <typename C>
struct DeviceMoeState {
  DeviceArray<float> logits, scores, weights;          // [m, E], [m, E], [m, k]
  DeviceArray<int32_t> ids;                            // [m, k]
  DeviceArray<float> batch_factors, sequence_factors;  // of DeviceBalance
  DeviceBalance balance;
  // x as the experts get it (DispatchedRows), and with such ranks the weights, of the n tokens.
  DeviceArray<C> all_x;                             // [n, H]; empty: the same rows as x
  DeviceArray<float> all_weights;                   // [n, k]
  DeviceArray<int32_t> place, offsets;              // of DeviceSlots, for n tokens
  DeviceArray<C> gate_up, results, shared_gate_up;  // [n · k, 2 I], [n · k, H], [m, 2 S]
};

// The experts of a layer are on this rank, or divided among the ranks of DeviceGroups::experts.
// Then each of these ranks gets the rows of all their tokens, and computes its experts' parts of
// the outputs, which are summed. The numbers of the experts' rows stay on the device, so arrays
// have room for all slots. Owned by its model; used by the rank's thread only.
template <typename C>
class DeviceMoe {
 public:
  // Places the parameters; `layer`: index in the model; `prefix`: "model.layers.3.".
  DeviceMoe(const ModelConfig& config, const TensorNames& names, int layer,
            const std::string& prefix, const DeviceContext<C>& on);

  struct Input {
    const C* x = nullptr;            // [m, H]
    const float* base = nullptr;     // [m, H] to which the output is added
    const int32_t* given = nullptr;  // [m, k] given experts (TrainOps::GiveExperts); null: none
    BalanceLosses losses = {};
    double step_tokens = 1;  // StepSize::tokens
  };
  // Writes the base plus the output to y [m, H]. Adds the number of slots of each expert of this
  // rank to loads [E], and to counts [2] those of GiveExperts. Ranks that divide the experts only
  // start the sum of their outputs: the caller adds `sums` to y. Returns the balance losses of the
  // tokens [m]; empty if no loss has a weight. A rank without rows takes part, if other ranks have
  // some.
  DeviceArray<float> Forward(const DeviceRows& rows, const Input& in, DeviceMoeState<C>* state,
                             float* y, int32_t* loads, int32_t* counts, DeviceRowSums* sums);
  // dy [m, H]. Writes dx [m, H]. The state is invalid afterwards.
  void Backward(const DeviceRows& rows, const C* x, DeviceMoeState<C>& state, const C* dy,
                float* dx);

  const Slab* bias() const { return bias_; }  // the selection bias; null: none

 private:
  DeviceRouting RoutingOf(int64_t m, DeviceMoeState<C>& state) const;
  DeviceSlots SlotsOf(int64_t n, DeviceMoeState<C>& state) const;
  void Route(int64_t m, const Input& in, DeviceMoeState<C>* state, int32_t* counts);
  // Returns the losses of the tokens.
  DeviceArray<float> AddBalance(const DeviceRows& rows, const Input& in, DeviceMoeState<C>* state);

  const DeviceContext<C>& on_;
  const int layer_;
  const RouterConfig config_;
  const Range mine_;          // experts of this rank
  const RouterConfig local_;  // the same router with these experts only
  const int64_t hidden_;
  const Slab* router_;
  const Slab* bias_ = nullptr;
  std::optional<DeviceFeedForward<C>> experts_, shared_;  // shared_: may be empty
};

}  // namespace switchyard::train
