// Routing of plain operations, with the functions of layers/router_math.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/range.h"
#include "moe/router/router.h"
#include "train/device/ops.h"
#include "train/device/plain_ops.h"
#include "train/layers/router.h"
#include "train/layers/router_math.h"

namespace switchyard::train::plain {

using router_math::LogSum;

inline void GiveExperts(const RouterConfig& config, const DeviceRouting& r, const int32_t* given,
                        int32_t* counts) {
  const auto k = static_cast<size_t>(config.top_k);
  for (int64_t t = 0; t < r.m; ++t, given += k) {
    const std::span<const int32_t> wanted(given, k);
    if (std::ranges::all_of(wanted, [](int32_t e) { return e < 0; })) continue;
    const std::span<int32_t> own(r.ids + t * config.top_k, k);
    ++counts[0];
    if (std::ranges::is_permutation(wanted, own)) ++counts[1];
    std::ranges::copy(wanted, own.begin());
  }
}

inline void RouteWeights(const RouterConfig& config, const DeviceRouting& r) {
  const int64_t experts = config.num_experts, k = config.top_k;
  for (int64_t t = 0; t < r.m; ++t) {
    const float* logits = r.logits + t * experts;
    float* scores = r.scores + t * experts;
    router_math::Scores(config.scoring, logits, experts, scores);
    router_math::Weights(config, logits, scores, r.ids + t * k, r.weights + t * k);
  }
}

// The sum of a token's scores, by which they are divided to give probabilities.
inline double ScoreSum(const RouterConfig& config, const float* scores) {
  if (config.scoring != RouterConfig::Scoring::kSigmoid) return 1.0;
  double sum = router_math::kTiny;
  for (int e = 0; e < config.num_experts; ++e) sum += scores[e];
  return sum;
}

// counts [E + 1]: the slots of each expert among rows, then the number of rows.
inline void CountRows(const RouterConfig& config, const DeviceRouting& r, Range rows,
                      float* counts) {
  const int64_t k = config.top_k;
  std::fill_n(counts, config.num_experts, 0.0f);
  for (int64_t slot = rows.begin * k; slot < rows.end * k; ++slot)
    if (r.ids[slot] >= 0) ++counts[r.ids[slot]];
  counts[config.num_experts] = static_cast<float>(rows.size());
}

inline void CountTokens(const RouterConfig& config, const DeviceRouting& r, float* counts) {
  CountRows(config, r, {0, r.m}, counts);
}

// factors[e] = weight · E / (k · tokens) / step_tokens · the slots of expert e; counts [E + 1] of
// CountRows.
inline void BalanceFactors(const RouterConfig& config, const float* counts, double weight,
                           float* factors) {
  const auto experts = static_cast<size_t>(config.num_experts);
  const double tokens = std::max(1.0f, counts[experts]);
  const double one = weight * config.num_experts / (config.top_k * tokens);
  for (size_t e = 0; e < experts; ++e)
    factors[e] = static_cast<float>(one * static_cast<double>(counts[e]));
}

inline void Balance(const RouterConfig& config, const DeviceRows& rows, const DeviceRouting& r,
                    const DeviceBalance& balance, float* losses) {
  const int64_t experts = config.num_experts;
  const BalanceLosses& weights = balance.weights;
  std::fill_n(losses, r.m, 0.0f);
  // Adds the losses with these factors.
  const auto add = [&](Range part, const float* factors) {
    for (int64_t t = part.begin; t < part.end; ++t) {
      const float* scores = r.scores + t * experts;
      const double sum = ScoreSum(config, scores);
      double loss = 0;
      for (int64_t e = 0; e < experts; ++e)
        loss += static_cast<double>(factors[e]) * static_cast<double>(scores[e]) / sum;
      losses[t] += static_cast<float>(loss);
    }
  };
  if (weights.batch != 0.0) {
    BalanceFactors(config, balance.counts, weights.batch / balance.step_tokens, balance.batch);
    add({0, r.m}, balance.batch);
  }
  std::vector<float> counts(static_cast<size_t>(experts + 1));
  for (int64_t i = 0; weights.sequence != 0.0 && i < rows.sequences; ++i) {
    const Range sequence = {rows.begins[i], rows.begins[i + 1]};
    float* factors = balance.sequence + i * experts;
    CountRows(config, r, sequence, counts.data());
    BalanceFactors(config, counts.data(), weights.sequence / balance.step_tokens, factors);
    add(sequence, factors);
  }
  for (int64_t t = 0; weights.z != 0.0 && t < r.m; ++t) {
    const double z = LogSum(r.logits + t * experts, experts);
    losses[t] += static_cast<float>(weights.z * z * z / balance.step_tokens);
  }
}

inline void RouteGradient(const RouterConfig& config, const DeviceRows& rows,
                          const DeviceRouting& r, const DeviceBalance* balance,
                          const float* dweights, float* dlogits) {
  const int64_t experts = config.num_experts, k = config.top_k;
  std::vector<float> room(static_cast<size_t>(experts)), dp(static_cast<size_t>(experts));
  std::fill_n(dlogits, r.m * experts, 0.0f);
  int64_t sequence = 0;
  for (int64_t t = 0; t < r.m; ++t) {
    float dz = 0;
    std::ranges::fill(dp, 0.0f);
    if (balance != nullptr) {
      const BalanceLosses& weights = balance->weights;
      while (rows.begins[sequence + 1] <= t) ++sequence;
      for (int64_t e = 0; e < experts; ++e) {
        float& d = dp[static_cast<size_t>(e)];
        if (weights.batch != 0.0) d += balance->batch[e];
        if (weights.sequence != 0.0) d += balance->sequence[sequence * experts + e];
      }
      const double z = weights.z == 0.0 ? 0.0 : LogSum(r.logits + t * experts, experts);
      dz = static_cast<float>(2.0 * weights.z * z / balance->step_tokens);
    }
    const router_math::RoutedToken<float> token{.logits = r.logits + t * experts,
                                                .scores = r.scores + t * experts,
                                                .ids = r.ids + t * k,
                                                .weights = r.weights + t * k,
                                                .dweights = dweights + t * k,
                                                .dp = balance == nullptr ? nullptr : dp.data()};
    router_math::AddLogitGradient(config, token, dz, room.data(), dlogits + t * experts);
  }
}

}  // namespace switchyard::train::plain
