// Scores, weights and gradients of one token's routing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "moe/router/router.h"

namespace switchyard::train::router_math {

using Scoring = RouterConfig::Scoring;

// Avoids 0 / 0 if all sigmoids underflow, as in moe/router/router.cc.
constexpr double kTiny = 1e-20;

template <typename T>
T LogSum(const T* x, int64_t n) {
  const T largest = *std::max_element(x, x + n);
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

// dx += p · (dp - Σ dp p), the transpose of softmax's Jacobian.
template <typename T>
void AddSoftmaxGradient(const T* p, const T* dp, int64_t n, T* dx) {
  T along = 0;
  for (int64_t i = 0; i < n; ++i) along += dp[i] * p[i];
  for (int64_t i = 0; i < n; ++i) dx[i] += p[i] * (dp[i] - along);
}

template <typename T>
void Scores(Scoring scoring, const T* logits, int64_t n, T* scores) {
  if (scoring == Scoring::kSigmoid) {
    for (int64_t e = 0; e < n; ++e) scores[e] = T{1} / (T{1} + std::exp(-logits[e]));
    return;
  }
  const T log_sum = LogSum(logits, n);
  for (int64_t e = 0; e < n; ++e) scores[e] = std::exp(logits[e] - log_sum);
}

// Weights of one token; slots without an expert get weight 0.
template <typename T>
void Weights(const RouterConfig& c, const T* logits, const T* scores, const int32_t* ids,
             T* weights) {
  if (c.scoring == Scoring::kTopKSoftmax) {
    T largest = -INFINITY, sum = 0;
    for (int j = 0; j < c.top_k; ++j)
      if (ids[j] >= 0) largest = std::max(largest, logits[ids[j]]);
    for (int j = 0; j < c.top_k; ++j) {
      weights[j] = ids[j] < 0 ? T{0} : std::exp(logits[ids[j]] - largest);
      sum += weights[j];
    }
    for (int j = 0; j < c.top_k && sum > 0; ++j) weights[j] /= sum;
  } else {
    for (int j = 0; j < c.top_k; ++j) weights[j] = ids[j] < 0 ? T{0} : scores[ids[j]];
  }
  if (c.renormalize) {
    T sum = static_cast<T>(kTiny);
    for (int j = 0; j < c.top_k; ++j) sum += weights[j];
    for (int j = 0; j < c.top_k; ++j) weights[j] /= sum;
  }
  for (int j = 0; j < c.top_k; ++j) weights[j] *= static_cast<T>(c.routed_scaling_factor);
}

// Inputs of the backward pass for one token.
template <typename T>
struct RoutedToken {
  const T *logits, *scores;  // [E]
  const int32_t* ids;        // [k]
  const T *weights, *dweights;
  const T* dp;  // [E] gradient of the balance losses with respect to p; null: none
};

// Σ dw · w, which normalization subtracts in the gradient of every weight.
template <typename T>
T WeightedGradientSum(const RouterConfig& c, const RoutedToken<T>& t) {
  T sum = 0;
  for (int j = 0; j < c.top_k; ++j) sum += t.dweights[j] * t.weights[j];
  return sum;
}

// Adds the gradient of the logits for routers whose weights are the softmax of the chosen logits.
template <typename T>
void AddTopKSoftmaxGradient(const RouterConfig& c, const RoutedToken<T>& t, T* dlogits) {
  const T along = WeightedGradientSum(c, t) / static_cast<T>(c.routed_scaling_factor);
  for (int j = 0; j < c.top_k; ++j)
    if (t.ids[j] >= 0) dlogits[t.ids[j]] += t.weights[j] * (t.dweights[j] - along);
}

// Computes dscores [E]: the gradient through the weights of the chosen experts, plus the gradient
// through p.
template <typename T>
void ScoreGradient(const RouterConfig& c, const RoutedToken<T>& t, T* dscores) {
  std::fill_n(dscores, c.num_experts, T{0});
  if (c.scoring != Scoring::kTopKSoftmax) {
    T sum = 1, along = 0;
    if (c.renormalize) {
      sum = static_cast<T>(kTiny);
      for (int j = 0; j < c.top_k; ++j) sum += t.ids[j] < 0 ? T{0} : t.scores[t.ids[j]];
      along = WeightedGradientSum(c, t);
    }
    const auto factor = static_cast<T>(c.routed_scaling_factor);
    for (int j = 0; j < c.top_k; ++j)
      if (t.ids[j] >= 0) dscores[t.ids[j]] += (t.dweights[j] * factor - along) / sum;
  }
  if (t.dp == nullptr) return;
  T sum = 1, back = 0;
  if (c.scoring == Scoring::kSigmoid) {  // p = score / Σ scores
    sum = static_cast<T>(kTiny);
    for (int e = 0; e < c.num_experts; ++e) sum += t.scores[e];
    for (int e = 0; e < c.num_experts; ++e) back += t.dp[e] * t.scores[e] / sum;
  }
  for (int e = 0; e < c.num_experts; ++e) dscores[e] += (t.dp[e] - back) / sum;
}

template <typename T>
void AddScoreGradient(const RouterConfig& c, const RoutedToken<T>& t, const T* dscores,
                      T* dlogits) {
  if (c.scoring != Scoring::kSigmoid)
    return AddSoftmaxGradient(t.scores, dscores, c.num_experts, dlogits);
  for (int e = 0; e < c.num_experts; ++e)
    dlogits[e] += dscores[e] * t.scores[e] * (T{1} - t.scores[e]);
}

// Adds the gradient of all logits of a token. dz: the gradient of its z-loss; room [E].
template <typename T>
void AddLogitGradient(const RouterConfig& c, const RoutedToken<T>& t, T dz, T* room, T* dlogits) {
  if (c.scoring == Scoring::kTopKSoftmax) AddTopKSoftmaxGradient(c, t, dlogits);
  ScoreGradient(c, t, room);
  AddScoreGradient(c, t, room, dlogits);
  if (dz == T{0}) return;
  Scores(Scoring::kSoftmax, t.logits, c.num_experts, room);
  for (int e = 0; e < c.num_experts; ++e) dlogits[e] += dz * room[e];
}

}  // namespace switchyard::train::router_math
