// Validate: checks the parameters of a request.
#include <cmath>
#include <string>

#include "core/error.h"
#include "engine/request.h"

namespace switchyard {

namespace {

constexpr size_t kMaxStopIds = 1024, kMaxBiases = 4096, kMaxLogprobIds = 4096;
constexpr size_t kMaxBadWords = 1024, kMaxBadWordTokens = 256;

template <typename... Args>
ParameterError Refused(const char* name, fmt::format_string<Args...> format, Args&&... args) {
  return {name, fmt::format(format, std::forward<Args>(args)...)};
}

void CheckRange(const char* name, float value, float low, float high) {
  if (!(value >= low && value <= high))  // NaN fails too
    throw Refused(name, "is {}, want {} to {}", value, low, high);
}

void CheckId(const char* name, int32_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size)
    throw Refused(name, "has token id {}, want 0 to {}", id, vocab_size - 1);
}

void CheckCount(const char* name, size_t count, size_t most) {
  if (count > most) throw Refused(name, "has {} entries, want at most {}", count, most);
}

void CheckIds(const char* name, const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (const int32_t id : ids) CheckId(name, id, vocab_size);
}

void CheckLengths(const SamplingParams& p) {
  if (p.max_new_tokens < 0)
    throw Refused("max_new_tokens", "is {}, want 0 or more", p.max_new_tokens);
  if (p.min_new_tokens < 0 || p.min_new_tokens > p.max_new_tokens)
    throw Refused("min_new_tokens", "is {}, want 0 to {} (max_new_tokens)", p.min_new_tokens,
                  p.max_new_tokens);
}

void CheckFilters(const SamplingParams& p) {
  if (!(p.temperature >= 0.0f) || !std::isfinite(p.temperature))
    throw Refused("temperature", "is {}, want a finite number of 0 or more", p.temperature);
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f))
    throw Refused("top_p", "is {}, want more than 0 and at most 1", p.top_p);
  if (p.top_k != -1 && p.top_k < 1)
    throw Refused("top_k", "is {}, want -1 or 0 (all) or at least 1", p.top_k);
  CheckRange("min_p", p.min_p, 0.0f, 1.0f);
  CheckRange("frequency_penalty", p.frequency_penalty, -2.0f, 2.0f);
  CheckRange("presence_penalty", p.presence_penalty, -2.0f, 2.0f);
  if (!(p.repetition_penalty > 0.0f && p.repetition_penalty <= 2.0f))
    throw Refused("repetition_penalty", "is {}, want more than 0 and at most 2",
                  p.repetition_penalty);
}

void CheckBadWords(const SamplingParams& p, int64_t vocab_size) {
  CheckCount("bad_words", p.bad_words.size(), kMaxBadWords);
  for (const std::vector<int32_t>& word : p.bad_words) {
    if (word.empty()) throw Refused("bad_words", "has a word without tokens");
    if (word.size() > kMaxBadWordTokens)
      throw Refused("bad_words", "has a word of {} tokens, want at most {}", word.size(),
                    kMaxBadWordTokens);
    CheckIds("bad_words", word, vocab_size);
  }
}

}  // namespace

void Validate(const SamplingParams& p, int64_t vocab_size) {
  CheckLengths(p);
  CheckFilters(p);
  CheckCount("stop_token_ids", p.stop_token_ids.size(), kMaxStopIds);
  CheckIds("stop_token_ids", p.stop_token_ids, vocab_size);
  CheckCount("logit_bias", p.logit_bias.size(), kMaxBiases);
  for (const auto& [id, bias] : p.logit_bias) {
    CheckId("logit_bias", id, vocab_size);
    CheckRange("logit_bias", bias, -100.0f, 100.0f);
  }
  CheckCount("allowed_token_ids", p.allowed_token_ids.size(), static_cast<size_t>(vocab_size));
  CheckIds("allowed_token_ids", p.allowed_token_ids, vocab_size);
  CheckBadWords(p, vocab_size);
}

void Validate(const LogprobParams& p, int64_t vocab_size) {
  if (p.start < -1) throw Refused("logprob_start_len", "is {}, want -1 or more", p.start);
  if (p.top < 0 || p.top > vocab_size)
    throw Refused("top_logprobs", "is {}, want 0 to {}", p.top, vocab_size);
  CheckCount("token_ids_logprob", p.token_ids.size(), kMaxLogprobIds);
  CheckIds("token_ids_logprob", p.token_ids, vocab_size);
}

void Validate(const RoutedExpertsParams& p, int64_t prompt_length, bool model_has_experts) {
  if (p.enabled && !model_has_experts)
    throw Refused("return_routed_experts", "cannot be given: this model has no experts");
  if (p.start < 0 || p.start > prompt_length)
    throw Refused("routed_experts_start_len", "is {}, want 0 to {}, the prompt's length", p.start,
                  prompt_length);
}

}  // namespace switchyard
