#include "engine/sampler/sampler.h"

#include <cmath>
#include <utility>

#include "core/check.h"
#include "engine/sampler/random.h"
#include "engine/sampler/softmax.h"

namespace switchyard {

Sampler::Sampler(int64_t vocab_size, std::vector<int32_t> eos_token_ids)
    : penalties_(vocab_size, std::move(eos_token_ids)),
      filter_(vocab_size),
      adjusted_(vocab_size),
      weights_(vocab_size) {}

std::optional<int32_t> Sampler::Draw(std::span<const float> logits, const SamplingParams& params,
                                     std::span<const int32_t> prompt,
                                     std::span<const int32_t> output, uint64_t seed) {
  CHECK_EQ(logits.size(), weights_.size());
  if (Penalties::Needed(params, static_cast<int64_t>(output.size()))) {
    adjusted_.assign(logits.begin(), logits.end());
    penalties_.Apply(params, prompt, output, adjusted_);
    logits = adjusted_;
  }
  return DrawRow(logits, RowSamplingOf(params, UniformDraw(seed, output.size())));
}

kernels::RowSampling Sampler::RowSamplingOf(const SamplingParams& params, double uniform) {
  return {.temperature = params.temperature < kGreedyBelow ? 0.0f : params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .uniform = uniform};
}

std::optional<int32_t> Sampler::DrawRow(std::span<const float> logits,
                                        const kernels::RowSampling& row) {
  if (row.temperature == 0.0f) {
    const int32_t best = ArgMax(logits);
    if (!std::isfinite(logits[best])) return std::nullopt;
    return best;
  }
  const float max = Max(logits);
  if (!std::isfinite(max)) return std::nullopt;
  const double total = ExpWeights(logits, max, 1.0f / row.temperature, weights_.data());
  const Cutoff cutoff =
      filter_.Cut(weights_, total, {.top_k = row.top_k, .top_p = row.top_p, .min_p = row.min_p});
  return DrawWeighted(cutoff, row.uniform);
}

int32_t Sampler::DrawWeighted(const Cutoff& cutoff, double uniform) const {
  const auto vocab = static_cast<int32_t>(weights_.size());
  double kept = 0.0;
  for (int32_t i = 0; i < vocab; ++i)
    if (cutoff.Keeps(weights_[i], i)) kept += weights_[i];
  CHECK_GT(kept, 0.0);

  const double target = uniform * kept;
  double below = 0.0;
  int32_t last = -1;  // the fallback if rounding puts the target at the very end
  for (int32_t i = 0; i < vocab; ++i) {
    if (!cutoff.Keeps(weights_[i], i)) continue;
    below += weights_[i];
    last = i;
    if (below > target) break;
  }
  return last;
}

}  // namespace switchyard
