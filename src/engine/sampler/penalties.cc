#include "engine/sampler/penalties.h"

#include <algorithm>
#include <limits>

namespace switchyard {

namespace {

bool PenalizesOutput(const SamplingParams& p) {
  return p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f;
}

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void ForbidBadWords(const std::vector<std::vector<int32_t>>& words, std::span<const int32_t> output,
                    std::span<float> logits) {
  for (const std::vector<int32_t>& word : words) {
    const size_t before = word.size() - 1;
    if (output.size() < before) continue;
    if (std::equal(word.begin(), word.end() - 1, output.end() - before))
      logits[word.back()] = kForbidden;
  }
}

}  // namespace

Penalties::Penalties(int64_t vocab_size, std::vector<int32_t> eos_token_ids)
    : eos_token_ids_(std::move(eos_token_ids)), counts_(vocab_size, 0) {}

bool Penalties::Needed(const SamplingParams& params, int64_t output_length) {
  return PenalizesOutput(params) || params.repetition_penalty != 1.0f ||
         !params.logit_bias.empty() || output_length < params.min_new_tokens ||
         !params.allowed_token_ids.empty() || !params.bad_words.empty();
}

void Penalties::Count(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens)
    if (counts_[token]++ == 0) seen_.push_back(token);
}

void Penalties::Reset() {
  for (const int32_t token : seen_) counts_[token] = 0;
  seen_.clear();
}

void Penalties::ForbidAllBut(std::span<const int32_t> allowed, std::span<float> logits) {
  Count(allowed);
  for (size_t token = 0; token < logits.size(); ++token)
    if (counts_[token] == 0) logits[token] = kForbidden;
  Reset();
}

void Penalties::Apply(const SamplingParams& params, std::span<const int32_t> prompt,
                      std::span<const int32_t> output, std::span<float> logits) {
  if (PenalizesOutput(params)) {
    Count(output);
    for (const int32_t token : seen_)
      logits[token] -=
          params.frequency_penalty * static_cast<float>(counts_[token]) + params.presence_penalty;
    Reset();
  }
  if (params.repetition_penalty != 1.0f) {
    Count(prompt);
    Count(output);
    for (const int32_t token : seen_) {
      float& logit = logits[token];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    Reset();
  }
  for (const auto& [token, bias] : params.logit_bias) logits[token] += bias;
  if (static_cast<int64_t>(output.size()) < params.min_new_tokens) {
    for (const int32_t token : eos_token_ids_) logits[token] = kForbidden;
    for (const int32_t token : params.stop_token_ids) logits[token] = kForbidden;
  }
  if (!params.allowed_token_ids.empty()) ForbidAllBut(params.allowed_token_ids, logits);
  ForbidBadWords(params.bad_words, output, logits);
}

}  // namespace switchyard
