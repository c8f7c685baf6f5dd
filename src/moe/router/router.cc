#include "moe/router/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "core/check.h"

namespace switchyard {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// ln(1 + e^x) is x in float32 where x is large.
float SqrtSoftplus(float x) { return std::sqrt(x > 20.0f ? x : std::log1p(std::exp(x))); }

// Index of the largest value; the lowest index on ties; −1 if all values are −∞.
int ArgMax(std::span<const float> values) {
  int best = -1;
  float best_value = kMinusInfinity;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > best_value) {
      best = static_cast<int>(i);
      best_value = values[i];
    }
  }
  return best;
}

// Softmax in place. Subtracts the maximum before it computes exponentials.
void Softmax(std::span<float> values) {
  const float largest = *std::ranges::max_element(values);
  float sum = 0.0f;
  for (float& v : values) {
    v = std::exp(v - largest);
    sum += v;
  }
  for (float& v : values) v /= sum;
}

float GroupScore(RouterConfig::GroupScore by, std::span<const float> group) {
  float first = kMinusInfinity, second = kMinusInfinity;
  for (const float v : group) {
    if (v > first) {
      second = first;
      first = v;
    } else if (v > second) {
      second = v;
    }
  }
  const bool both = by == RouterConfig::GroupScore::kTop2Sum && group.size() > 1;
  return both ? first + second : first;
}

// Per-thread scratch, kept between calls.
struct RouterScratch {
  std::vector<float> scores;  // [num_logits] scores from which the weights are computed
  // [num_logits] scores by which experts are selected; −∞: not eligible.
  std::vector<float> choice;
  std::vector<float> groups;  // [num_groups]
};

// Masks the experts of all groups except the topk_groups best ones.
void LimitToBestGroups(const RouterConfig& config, RouterScratch* scratch) {
  const int size = config.num_experts / config.num_groups;
  const auto group = [&](int g) { return std::span(scratch->choice).subspan(g * size, size); };
  scratch->groups.resize(config.num_groups);
  for (int g = 0; g < config.num_groups; ++g)
    scratch->groups[g] = GroupScore(config.group_score, group(g));
  // Marks the selected groups by a group score of −∞. Then masks the groups that are not marked.
  for (int i = 0; i < config.topk_groups; ++i)
    if (const int best = ArgMax(scratch->groups); best >= 0) scratch->groups[best] = kMinusInfinity;
  for (int g = 0; g < config.num_groups; ++g)
    if (scratch->groups[g] != kMinusInfinity) std::ranges::fill(group(g), kMinusInfinity);
}

// Selects the experts of one token by SparseMixer (RouterConfig). ids, weights: [2].
void SelectBySparseMixer(float jitter, std::span<const float> logits, std::span<float> left,
                         std::span<int32_t> ids, std::span<float> weights) {
  std::ranges::copy(logits, left.begin());  // −∞ marks an expert that is already selected
  for (size_t j = 0; j < ids.size(); ++j) {
    const int best = ArgMax(left);
    const float largest = left[best];
    float sum = 0.0f;
    for (const float x : left) {
      const bool far = (largest - x) / std::max(std::fabs(x), largest) > 2.0f * jitter;
      if (x != kMinusInfinity && !far) sum += std::exp(x - largest);
    }
    ids[j] = best;
    weights[j] = 1.0f / sum;
    left[best] = kMinusInfinity;
  }
}

// Selects the experts of one token. ids, weights: [k].
void SelectForToken(const RouterConfig& config, std::span<const float> logits,
                    const float* correction_bias, RouterScratch* scratch, std::span<int32_t> ids,
                    std::span<float> weights) {
  auto& [scores, choice, groups] = *scratch;
  scores.assign(logits.begin(), logits.end());
  if (config.scoring == RouterConfig::Scoring::kSparseMixer)
    return SelectBySparseMixer(config.jitter, logits, scores, ids, weights);
  if (config.scoring == RouterConfig::Scoring::kSoftmax) {
    Softmax(scores);
  } else if (config.scoring == RouterConfig::Scoring::kSigmoid) {
    for (float& s : scores) s = 1.0f / (1.0f + std::exp(-s));
  } else if (config.scoring == RouterConfig::Scoring::kSqrtSoftplus) {
    for (float& s : scores) s = SqrtSoftplus(s);
  }

  choice = scores;
  if (correction_bias)
    for (int e = 0; e < config.num_logits(); ++e) choice[e] += correction_bias[e];
  if (config.num_groups > 1) LimitToBestGroups(config, scratch);

  for (int j = 0; j < config.top_k; ++j) {
    const int best = ArgMax(choice);
    ids[j] = best;
    weights[j] = best < 0 ? 0.0f : scores[best];
    if (best >= 0) choice[best] = kMinusInfinity;
  }
}

// Returns the first expert whose score is not finite; −1: none. A correction bias of −∞ is allowed,
// because it excludes an expert.
int32_t FirstBad(std::span<const float> logits, const float* correction_bias) {
  for (size_t e = 0; e < logits.size(); ++e) {
    const bool biased = correction_bias == nullptr || std::isfinite(correction_bias[e]) ||
                        correction_bias[e] == kMinusInfinity;
    if (!std::isfinite(logits[e]) || !biased) return static_cast<int32_t>(e);
  }
  return -1;
}

// Fills in the selection for a token whose scores are not finite: valid expert ids, and NaN
// weights, which end its request.
void SelectNothing(std::span<int32_t> ids, std::span<float> weights) {
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::fill(weights, std::numeric_limits<float>::quiet_NaN());
}

// Converts the scores of the selected experts to weights.
void FinishWeights(const RouterConfig& config, std::span<const int32_t> ids,
                   std::span<float> weights) {
  // Slots without an expert come last.
  const auto chosen = weights.first(std::ranges::find(ids, -1) - ids.begin());
  if (chosen.empty()) return;
  if (config.scoring == RouterConfig::Scoring::kTopKSoftmax) Softmax(chosen);
  if (config.scoring == RouterConfig::Scoring::kTopKSigmoid)
    for (float& w : chosen) w = 1.0f / (1.0f + std::exp(-w));
  if (config.renormalize) {
    float sum = 1e-20f;  // avoids division by zero: all sigmoids may be zero
    for (const float w : chosen) sum += w;
    for (float& w : chosen) w /= sum;
  }
  for (float& w : chosen) w *= config.routed_scaling_factor;
}

void Resize(int64_t tokens, int k, TopK* out) {
  out->tokens = tokens;
  out->k = k;
  out->ids.resize(tokens * k);
  out->weights.resize(tokens * k);
  out->bad_experts.resize(tokens);
}

}  // namespace

void SelectExperts(const RouterConfig& config, const float* logits, int64_t tokens,
                   const float* correction_bias, TopK* out, ThreadPool& pool) {
  const int experts = config.num_logits(), k = config.top_k;
  CHECK(k >= 1 && k <= config.num_experts);
  CHECK(config.zero_experts == 0 || config.num_groups == 1);
  CHECK(config.scoring != RouterConfig::Scoring::kSparseMixer || (k == 2 && !correction_bias));
  CHECK(!config.scales_input || k == 1);
  CHECK(config.num_groups >= 1 && experts % config.num_groups == 0);
  Resize(tokens, k, out);
  pool.RunRanges(tokens, 16, [&](int64_t begin, int64_t end) {
    static thread_local RouterScratch scratch;
    for (int64_t t = begin; t < end; ++t) {
      const auto ids = std::span(out->ids).subspan(t * k, k);
      const auto weights = std::span(out->weights).subspan(t * k, k);
      const std::span row(logits + t * experts, static_cast<size_t>(experts));
      out->bad_experts[t] = FirstBad(row, correction_bias);
      if (out->bad_experts[t] >= 0) {
        SelectNothing(ids, weights);
        continue;
      }
      SelectForToken(config, row, correction_bias, &scratch, ids, weights);
      FinishWeights(config, ids, weights);
    }
  });
}

void LookUpExperts(const RouterConfig& config, const RouterWeights& weights, const float* logits,
                   int64_t tokens, const float* ids, int64_t stride, TopK* out, ThreadPool& pool) {
  const int experts = config.num_logits(), k = config.top_k;
  CHECK(config.scoring == RouterConfig::Scoring::kSqrtSoftplus && config.zero_experts == 0);
  CHECK(tokens == 0 || weights.token_experts != nullptr);  // ranks with experts only have none
  Resize(tokens, k, out);
  pool.RunRanges(tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto chosen = std::span(out->ids).subspan(t * k, k);
      const auto scores = std::span(out->weights).subspan(t * k, k);
      const std::span row(logits + t * experts, static_cast<size_t>(experts));
      out->bad_experts[t] = FirstBad(row, nullptr);
      if (out->bad_experts[t] >= 0) {
        SelectNothing(chosen, scores);
        continue;
      }
      const auto id = static_cast<int64_t>(ids[t * stride]);
      CHECK(id >= 0 && id < weights.token_rows);
      std::copy_n(weights.token_experts + id * k, k, chosen.begin());
      for (int j = 0; j < k; ++j) scores[j] = SqrtSoftplus(row[chosen[j]]);
      FinishWeights(config, chosen, scores);
    }
  });
}

void RemoveZeroExperts(const RouterConfig& config, TopK* topk, float* weights) {
  for (int64_t t = 0; t < topk->tokens; ++t) {
    weights[t] = 0.0f;
    for (int64_t slot = t * topk->k; slot < (t + 1) * topk->k; ++slot) {
      if (topk->ids[slot] < config.num_experts) continue;
      weights[t] += topk->weights[slot];
      topk->ids[slot] = -1;
      topk->weights[slot] = 0.0f;
    }
  }
}

}  // namespace switchyard
