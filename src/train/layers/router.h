// The router as it is trained: weights of the chosen experts from their logits, losses that keep
// the experts' loads even, and the gradient of both.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "moe/router.h"
#include "train/layers/linear.h"
#include "train/layers/rows.h"
#include "train/layers/tensor_group.h"

namespace switchyard::train {

// Weights of the losses that keep loads even; 0 turns one off. E experts of which each token takes
// K; p[t, e] are the softmax of the router's logits, or sigmoids divided by their sum; f[e] is
// E / K times the part of the tokens that takes e (a constant to the gradient).
struct BalanceLosses {
  // Σ_e f[e] · mean_t p[t, e] over the tokens of the micro-batch on all ranks: the Switch
  // Transformer's form (arXiv:2101.03961, equation 4) of GShard's, for top-k.
  double batch = 0.0;
  // The same within each sequence, sequences weighted by their length: DeepSeek-V3's complementary
  // loss (arXiv:2412.19437, equations 17 to 20).
  double sequence = 0.0;
  // mean_t (log Σ_e e^logit[t, e])²: ST-MoE's z-loss (arXiv:2202.08906, equation 5).
  double z = 0.0;

  bool any() const { return batch != 0.0 || sequence != 0.0 || z != 0.0; }
};

template <typename T>
struct RouterState {
  std::vector<T> logits, scores;  // [m, E]; scores: softmax, or the sigmoids
  TopK topk;                      // ids; its float weights are not used
  std::vector<T> weights;         // [m, k], routed_scaling_factor included
  std::vector<T> dprobabilities;  // [m, E] of the balance losses over p; empty: none
  std::vector<T> dz;              // [m] of the z-loss over log Σ e^logit; empty: none
  std::vector<float> loads;       // [E] how many of the rank's tokens take each expert
  // Tests: keeps `topk` of the pass before, so that a difference does not cross a change of choice.
  bool keep_choice = false;
};

// Sums counts over all ranks, in place; empty on one rank.
using SumOverRanks = std::function<void(std::span<float>)>;

// Owned by its layer.
template <typename T>
class Router {
 public:
  // `name`: of the linear, "model.layers.3.mlp.gate". With a selection bias (auxiliary-loss-free
  // balancing, arXiv:2408.15664) it is the parameter name + ".e_score_correction_bias", which has
  // no gradient.
  Router(const RouterConfig& config, int64_t hidden, const std::string& name, bool selection_bias,
         ParameterSet<T>& set);

  // Fills the state. The choice is made from float32 logits by the router that serves
  // (SelectExperts).
  void Forward(const T* x, int64_t m, RouterState<T>* state, ThreadPool& pool);
  // After Forward, where losses.any(): their sum over the rank's tokens divided by step_tokens (so
  // that sums over ranks and micro-batches are the step's), and the state's gradients. The rank's
  // tokens are its share, in `tp`, of `rows`.
  double AddBalance(const BalanceLosses& losses, const RowLayout& rows, double step_tokens,
                    const SumOverRanks& sum, const TensorGroup& tp, RouterState<T>* state);
  // dweights [m, k] → dx [m, H], written; the linear's gradient is added.
  void Backward(const T* x, int64_t m, RouterState<T>& state, const T* dweights, T* dx,
                ThreadPool& pool);

  const RouterConfig& config() const { return config_; }
  Parameter<T>* bias() { return bias_; }  // null: none

 private:
  std::vector<float> SequenceLoads(const RowLayout& rows, const TensorGroup& tp,
                                   const RouterState<T>& state) const;

  const RouterConfig config_;
  Linear<T> linear_;
  Parameter<T>* bias_ = nullptr;
};

// Moves each expert's selection bias by gamma towards more or less work: up where its load is under
// the mean, down where it is over (arXiv:2408.15664, algorithm 1). loads [E]: of the step, over all
// ranks.
template <typename T>
void MoveBias(std::span<const float> loads, double gamma, std::span<T> bias);

}  // namespace switchyard::train
