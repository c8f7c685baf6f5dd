#include "train/layers/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace switchyard::train {
namespace {

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

// Replaces the selection of tokens with given experts. The order of given slots is kept, because
// combine sums in slot order.
template <typename T>
void UseGivenExperts(int64_t m, int64_t k, RouterState<T>* s) {
  for (int64_t t = 0; t < m && !s->given.empty(); ++t) {
    const auto given = std::span<const int32_t>(s->given).subspan(t * k, k);
    if (std::ranges::all_of(given, [](int32_t e) { return e < 0; })) continue;
    const auto own = std::span(s->topk.ids).subspan(t * k, k);
    ++s->replayed;
    if (std::ranges::is_permutation(given, own)) ++s->agreed;
    std::ranges::copy(given, own.begin());
  }
}

}  // namespace

std::string FaultOfGivenExperts(std::span<const int32_t> ids, int num_experts) {
  for (size_t j = 0; j < ids.size(); ++j) {
    if (num_experts == 0 && ids[j] != -1)
      return fmt::format("expert {} is given to a layer without experts", ids[j]);
    if (ids[j] < -1 || ids[j] >= num_experts) {
      return fmt::format("expert {} is out of range, want 0 to {}, or -1 for none", ids[j],
                         num_experts - 1);
    }
    if (ids[j] >= 0 && std::ranges::count(ids.first(j), ids[j]) > 0)
      return fmt::format("expert {} is given twice", ids[j]);
  }
  return {};
}

template <typename T>
Router<T>::Router(const RouterConfig& config, int64_t hidden, const std::string& name,
                  const std::string& bias_name, ParameterSet<T>& set)
    : config_(config),
      // Float32, because rounded logits would change the expert choice. Routers have no adapters.
      linear_(Linear<T>::Of(set.Add(name + ".weight", {config.num_experts, hidden}),
                            ProductDtype::kFloat32)) {
  if (bias_name.empty()) return;
  bias_ = set.Add(bias_name, {config.num_experts});
  bias_->gradient.clear();
  bias_->exact = true;
}

template <typename T>
void Router<T>::Forward(const T* x, int64_t m, RouterState<T>* s, ThreadPool& pool) {
  const int64_t experts = config_.num_experts, k = config_.top_k;
  s->logits.resize(m * experts);
  s->scores.resize(m * experts);
  s->weights.resize(m * k);
  const Projection<T> projection = linear_.Forward(x, m, s->logits.data());
  Project<T>({&projection, 1}, pool);
  CHECK(s->given.empty() || std::ssize(s->given) == m * k);
  s->replayed = s->agreed = 0;
  if (!s->keep_choice) {
    const std::vector<float> logits(s->logits.begin(), s->logits.end());
    std::vector<float> bias;
    if (bias_ != nullptr) bias.assign(bias_->value.begin(), bias_->value.end());
    SelectExperts(config_, logits.data(), m, bias.empty() ? nullptr : bias.data(), &s->topk, pool);
    UseGivenExperts(m, k, s);
  }
  pool.RunRanges(m, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* logits = s->logits.data() + t * experts;
      T* scores = s->scores.data() + t * experts;
      Scores(config_.scoring, logits, experts, scores);
      Weights(config_, logits, scores, s->topk.ids.data() + t * k, s->weights.data() + t * k);
    }
  });
  s->loads.assign(experts, 0.0f);
  for (const int32_t e : s->topk.ids)
    if (e >= 0) s->loads[e] += 1.0f;
  s->dprobabilities.clear();
  s->dz.clear();
}

// [sequences, E] number of tokens of each sequence that choose each expert. The tokens of a
// sequence may be on several ranks.
template <typename T>
std::vector<float> Router<T>::SequenceLoads(const RowLayout& rows, const TensorGroup& tp,
                                            const RouterState<T>& s) const {
  const Range mine = tp.Mine(rows.rows());
  const int64_t experts = config_.num_experts, k = config_.top_k;
  std::vector<float> counts(rows.sequences() * experts);
  for (int64_t i = 0; i < rows.sequences(); ++i) {
    const int64_t begin = std::max<int64_t>(rows.begins[i], mine.begin);
    const int64_t end = std::min<int64_t>(rows.begins[i + 1], mine.end);
    for (int64_t slot = (begin - mine.begin) * k; slot < (end - mine.begin) * k; ++slot)
      if (s.topk.ids[slot] >= 0) counts[i * experts + s.topk.ids[slot]] += 1.0f;
  }
  tp.Sum(counts.data(), std::ssize(counts));
  return counts;
}

template <typename T>
double Router<T>::AddBalance(const BalanceLosses& losses, const RowLayout& rows, double step_tokens,
                             const SumOverRanks& sum, const TensorGroup& tp, RouterState<T>* s) {
  const Range mine = tp.Mine(rows.rows());
  const int64_t m = mine.size(), experts = config_.num_experts, k = config_.top_k;
  const double per_token = 1.0 / step_tokens;
  double loss = 0.0;
  s->dprobabilities.assign(m * experts, T{0});
  s->dz.assign(m, T{0});
  // Adds weight · f[e] · p[t, e] over rows [begin, end).
  const auto add = [&](int64_t begin, int64_t end, const std::vector<double>& f, double weight) {
    for (int64_t t = begin; t < end; ++t) {
      const T* scores = s->scores.data() + t * experts;
      double total = 1.0;
      if (config_.scoring == Scoring::kSigmoid) {
        total = kTiny;
        for (int64_t e = 0; e < experts; ++e) total += scores[e];
      }
      for (int64_t e = 0; e < experts; ++e) {
        const double d = weight * f[e] * per_token;
        s->dprobabilities[t * experts + e] += static_cast<T>(d);
        loss += d * static_cast<double>(scores[e]) / total;
      }
    }
  };
  std::vector<double> f(experts);
  if (losses.batch != 0.0) {
    std::vector<float> loads = s->loads;
    loads.push_back(static_cast<float>(m));
    if (sum) sum(loads);
    const double tokens = std::max(1.0f, loads.back());
    for (int64_t e = 0; e < experts; ++e) {
      f[e] = loads[e] * static_cast<double>(experts) / (static_cast<double>(k) * tokens);
    }
    add(0, m, f, losses.batch);
  }
  if (losses.sequence != 0.0) {
    const std::vector<float> counts = SequenceLoads(rows, tp, *s);
    for (int64_t i = 0; i < rows.sequences(); ++i) {
      const int64_t begin = rows.begins[i], end = rows.begins[i + 1];
      const double one = static_cast<double>(experts) / static_cast<double>(k * (end - begin));
      for (int64_t e = 0; e < experts; ++e) f[e] = one * counts[i * experts + e];
      add(std::max(begin, mine.begin) - mine.begin, std::min(end, mine.end) - mine.begin, f,
          losses.sequence);
    }
  }
  for (int64_t t = 0; losses.z != 0.0 && t < m; ++t) {
    const double log_sum = LogSum(s->logits.data() + t * experts, experts);
    loss += losses.z * log_sum * log_sum * per_token;
    s->dz[t] = static_cast<T>(2.0 * losses.z * log_sum * per_token);
  }
  return loss;
}

template <typename T>
void Router<T>::Backward(const T* x, int64_t m, RouterState<T>& s, const T* dweights, T* dx,
                         ThreadPool& pool) {
  const int64_t experts = config_.num_experts, k = config_.top_k;
  const bool balance = !s.dprobabilities.empty();
  std::vector<T> dlogits(m * experts);
  pool.RunRanges(m, 16, [&](int64_t begin, int64_t end) {
    std::vector<T> room(experts);
    for (int64_t t = begin; t < end; ++t) {
      const RoutedToken<T> token{.logits = s.logits.data() + t * experts,
                                 .scores = s.scores.data() + t * experts,
                                 .ids = s.topk.ids.data() + t * k,
                                 .weights = s.weights.data() + t * k,
                                 .dweights = dweights + t * k,
                                 .dp = balance ? s.dprobabilities.data() + t * experts : nullptr};
      T* dl = dlogits.data() + t * experts;
      if (config_.scoring == Scoring::kTopKSoftmax) AddTopKSoftmaxGradient(config_, token, dl);
      ScoreGradient(config_, token, room.data());
      AddScoreGradient(config_, token, room.data(), dl);
      if (!balance || s.dz[t] == T{0}) continue;
      Scores(Scoring::kSoftmax, token.logits, experts, room.data());
      for (int64_t e = 0; e < experts; ++e) dl[e] += s.dz[t] * room[e];
    }
  });
  const LinearUse<T> uses[] = {{&linear_, dlogits.data()}};
  BackwardAll<T>(uses, x, m, dx, false, pool);
}

template <typename T>
void MoveBias(std::span<const float> loads, double gamma, std::span<T> bias) {
  CHECK_EQ(loads.size(), bias.size());
  const double mean =
      std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  for (size_t e = 0; e < loads.size(); ++e) {
    if (loads[e] < mean) bias[e] += static_cast<T>(gamma);
    if (loads[e] > mean) bias[e] -= static_cast<T>(gamma);
  }
}

template class Router<float>;
template class Router<double>;
template void MoveBias(std::span<const float>, double, std::span<float>);
template void MoveBias(std::span<const float>, double, std::span<double>);

}  // namespace switchyard::train
