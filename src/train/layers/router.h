// Trainable router: weights of the chosen experts from their logits, load-balancing losses, and the
// gradients of both.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "moe/router/router.h"
#include "train/layers/linear.h"
#include "train/layers/pointwise.h"
#include "train/layers/tensor_group.h"

namespace switchyard::train {

// Weights of the load-balancing losses; a loss with weight 0 is disabled. There are E experts, and
// each token chooses K. p[t, e] is the softmax of the router's logits, or sigmoids normalized by
// their sum. f[e] is E / K times the fraction of tokens that choose e (a constant in the gradient).
struct BalanceLosses {
  // Σ_e f[e] · mean_t p[t, e] over the tokens of the micro-batch on all ranks: GShard's loss in the
  // form of the Switch Transformer (arXiv:2101.03961, equation 4), for top-k.
  double batch = 0.0;
  // The same formula as `batch`, applied to each sequence separately, with sequences weighted by
  // length. This is DeepSeek-V3's complementary sequence-wise loss (arXiv:2412.19437, equations 17
  // to 20).
  double sequence = 0.0;
  // mean_t (log Σ_e e^logit[t, e])²: ST-MoE's z-loss (arXiv:2202.08906, equation 5).
  double z = 0.0;

  bool any() const { return batch != 0.0 || sequence != 0.0 || z != 0.0; }
};

template <typename T>
struct RouterState {
  std::vector<T> logits, scores;  // [m, E]; scores: softmax, or sigmoids
  TopK topk;                      // ids; its float weights are not used
  std::vector<T> weights;         // [m, k], including routed_scaling_factor
  // [m, E] gradient of the balance losses with respect to p; empty: none.
  std::vector<T> dprobabilities;
  std::vector<T> dz;  // [m] gradient of the z-loss with respect to log Σ e^logit; empty: none
  std::vector<float> loads;  // [E] number of the rank's tokens that choose each expert
  // [m, k] experts that the batch gives to the rank's tokens (Batch::experts), −1: none. Empty: no
  // token has given experts.
  std::vector<int32_t> given;
  // Number of tokens with given experts, and how many of them would select the same set of experts.
  int64_t replayed = 0, agreed = 0;
  // For tests: keeps `topk` of the previous pass, so that the choice of experts is the same at both
  // points of a finite difference.
  bool keep_choice = false;
};

// Sums counts over all ranks, in place; empty on a single rank.
using SumOverRanks = std::function<void(std::span<float>)>;

// Describes the first fault of experts given to one token in one layer: "expert 9 is out of range,
// want 0 to 7, or -1 for none" or "expert 3 is given twice". Empty: no fault. num_experts is 0 for
// a layer without experts.
std::string FaultOfGivenExperts(std::span<const int32_t> ids, int num_experts);

// Owned by its layer.
template <typename T>
class Router {
 public:
  // `name`: tensor name of the linear layer, "model.layers.3.mlp.gate". `bias_name`: tensor name of
  // the selection bias (auxiliary-loss-free balancing, arXiv:2408.15664), a parameter without
  // gradient; empty: no bias.
  Router(const RouterConfig& config, int64_t hidden, const std::string& name,
         const std::string& bias_name, ParameterSet<T>& set);

  // Fills the state. SelectExperts, the router of inference, selects the experts from float32
  // logits. A token with given experts uses these instead (routing replay, arXiv:2510.11370). Its
  // weights follow from its own scores in the same way, and so do their gradients. The loads count
  // the experts in use. A given slot with id −1 beside other experts stays without an expert.
  void Forward(const T* x, int64_t m, RouterState<T>* state, ThreadPool& pool);
  // Call after Forward if losses.any(). Returns the losses, summed over the rank's tokens and
  // divided by step_tokens. The sums of these values over ranks and micro-batches are the losses of
  // the step. Also computes the gradients in `state`. The rank's tokens are its `tp` share of
  // `rows`.
  double AddBalance(const BalanceLosses& losses, const RowLayout& rows, double step_tokens,
                    const SumOverRanks& sum, const TensorGroup& tp, RouterState<T>* state);
  // Computes dx [m, H] from dweights [m, k]. Overwrites dx, and adds to the gradient of the linear
  // layer.
  void Backward(const T* x, int64_t m, RouterState<T>& state, const T* dweights, T* dx,
                ThreadPool& pool);

  // Elements of the state of m tokens. `balances`: with the gradients of AddBalance.
  int64_t StateElements(int64_t m, bool balances) const {
    const int64_t experts = config_.num_experts;
    return m * (2 * experts + config_.top_k + (balances ? experts + 1 : 0));
  }
  const RouterConfig& config() const { return config_; }
  Parameter<T>* bias() { return bias_; }  // null: none

 private:
  std::vector<float> SequenceLoads(const RowLayout& rows, const TensorGroup& tp,
                                   const RouterState<T>& state) const;

  const RouterConfig config_;
  Linear<T> linear_;
  Parameter<T>* bias_ = nullptr;
};

// Moves each expert's selection bias by gamma: up if its load is below the mean, down if above
// (arXiv:2408.15664, algorithm 1). loads [E]: tokens of the step that chose each expert, over all
// ranks.
template <typename T>
void MoveBias(std::span<const float> loads, double gamma, std::span<T> bias);

}  // namespace switchyard::train
