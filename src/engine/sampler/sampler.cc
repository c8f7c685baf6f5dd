#include "engine/sampler/sampler.h"

#include <bit>
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

std::optional<int32_t> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                       std::span<const int32_t> prompt,
                                       std::span<const int32_t> output, uint64_t seed,
                                       std::span<const uint32_t> mask) {
  CHECK_EQ(logits.size(), weights_.size());
  if (Penalties::Needed(params, static_cast<int64_t>(output.size()))) {
    adjusted_.assign(logits.begin(), logits.end());
    Adjust(params, prompt, output, adjusted_);
    logits = adjusted_;
  }
  return SampleRow(logits, RowSamplingOf(params, UniformDraw(seed, output.size())), mask);
}

void Sampler::Adjust(const SamplingParams& params, std::span<const int32_t> prompt,
                     std::span<const int32_t> output, std::span<float> logits) {
  CHECK_EQ(logits.size(), weights_.size());
  if (Penalties::Needed(params, static_cast<int64_t>(output.size())))
    penalties_.Apply(params, prompt, output, logits);
}

kernels::RowSampling Sampler::RowSamplingOf(const SamplingParams& params, double uniform) {
  return {.temperature = params.temperature < kGreedyBelow ? 0.0f : params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .uniform = uniform};
}

std::optional<int32_t> Sampler::SampleRow(std::span<const float> logits,
                                          const kernels::RowSampling& row,
                                          std::span<const uint32_t> mask) {
  if (mask.empty()) return SampleFrom(logits, row);
  // A mask often allows few tokens. Only those are read.
  allowed_ids_.clear();
  allowed_.clear();
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const auto id = static_cast<int32_t>(word * 32 + std::countr_zero(bits));
      allowed_ids_.push_back(id);
      allowed_.push_back(logits[id]);
    }
  }
  if (allowed_.empty()) return std::nullopt;
  const std::optional<int32_t> index = SampleFrom(allowed_, row);
  return index ? std::optional(allowed_ids_[*index]) : std::nullopt;
}

std::optional<int32_t> Sampler::SampleFrom(std::span<const float> logits,
                                           const kernels::RowSampling& row) {
  if (row.temperature == 0.0f) {
    const int32_t best = ArgMax(logits);
    if (!std::isfinite(logits[best])) return std::nullopt;
    return best;
  }
  const float max = Max(logits);
  if (!std::isfinite(max)) return std::nullopt;
  const double total = ExpWeights(logits, max, 1.0f / row.temperature, weights_.data());
  const std::span<const float> weights = std::span(weights_).first(logits.size());
  const Cutoff cutoff =
      filter_.Cut(weights, total, {.top_k = row.top_k, .top_p = row.top_p, .min_p = row.min_p});
  return SampleWeighted(weights, cutoff, row.uniform);
}

int32_t Sampler::SampleWeighted(std::span<const float> weights, const Cutoff& cutoff,
                                double uniform) {
  const auto count = static_cast<int32_t>(weights.size());
  double kept = 0.0;
  for (int32_t i = 0; i < count; ++i)
    if (cutoff.Keeps(weights[i], i)) kept += weights[i];
  CHECK_GT(kept, 0.0);

  const double target = uniform * kept;
  double below = 0.0;
  int32_t last = -1;  // the fallback if rounding puts the target at the very end
  for (int32_t i = 0; i < count; ++i) {
    if (!cutoff.Keeps(weights[i], i)) continue;
    below += weights[i];
    last = i;
    if (below > target) break;
  }
  return last;
}

}  // namespace switchyard
