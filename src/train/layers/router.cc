#include "train/layers/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "train/layers/router_math.h"

namespace switchyard::train {
namespace {

using router_math::AddLogitGradient;
using router_math::kTiny;
using router_math::LogSum;
using router_math::RoutedToken;
using router_math::Scores;
using router_math::Scoring;
using router_math::Weights;

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
      AddLogitGradient(config_, token, balance ? s.dz[t] : T{0}, room.data(),
                       dlogits.data() + t * experts);
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
