// Validate: checks the parameters of a request.
#include <cmath>

#include "core/error.h"
#include "engine/request.h"

namespace switchyard {

namespace {

constexpr size_t kMaxStopIds = 1024, kMostBiases = 4096, kMaxLogprobIds = 4096;

void CheckRange(const char* name, float value, float low, float high) {
  if (!(value >= low && value <= high))  // NaN fails too
    throw Invalid("{} is {}, want {} to {}", name, value, low, high);
}

void CheckId(const char* name, int32_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size)
    throw Invalid("{} has token id {}, want 0 to {}", name, id, vocab_size - 1);
}

void CheckCount(const char* name, size_t count, size_t most) {
  if (count > most) throw Invalid("{} has {} entries, want at most {}", name, count, most);
}

}  // namespace

void Validate(const SamplingParams& p, int64_t vocab_size) {
  if (p.max_new_tokens < 0) throw Invalid("max_new_tokens is {}, want 0 or more", p.max_new_tokens);
  if (p.min_new_tokens < 0 || p.min_new_tokens > p.max_new_tokens)
    throw Invalid("min_new_tokens is {}, want 0 to max_new_tokens ({})", p.min_new_tokens,
                  p.max_new_tokens);
  if (!(p.temperature >= 0.0f) || !std::isfinite(p.temperature))
    throw Invalid("temperature is {}, want a finite number of 0 or more", p.temperature);
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f))
    throw Invalid("top_p is {}, want more than 0 and at most 1", p.top_p);
  if (p.top_k != -1 && p.top_k < 1)
    throw Invalid("top_k is {}, want -1 (all) or at least 1", p.top_k);
  CheckRange("min_p", p.min_p, 0.0f, 1.0f);
  CheckRange("frequency_penalty", p.frequency_penalty, -2.0f, 2.0f);
  CheckRange("presence_penalty", p.presence_penalty, -2.0f, 2.0f);
  if (!(p.repetition_penalty > 0.0f && p.repetition_penalty <= 2.0f))
    throw Invalid("repetition_penalty is {}, want more than 0 and at most 2", p.repetition_penalty);
  CheckCount("stop_token_ids", p.stop_token_ids.size(), kMaxStopIds);
  for (const int32_t id : p.stop_token_ids) CheckId("stop_token_ids", id, vocab_size);
  CheckCount("logit_bias", p.logit_bias.size(), kMostBiases);
  for (const auto& [id, bias] : p.logit_bias) {
    CheckId("logit_bias", id, vocab_size);
    CheckRange("logit_bias", bias, -100.0f, 100.0f);
  }
}

void Validate(const LogprobParams& p, int64_t vocab_size) {
  if (p.start < -1) throw Invalid("logprob_start_len is {}, want -1 or more", p.start);
  if (p.top < 0 || p.top > vocab_size)
    throw Invalid("top_logprobs is {}, want 0 to {}", p.top, vocab_size);
  CheckCount("token_ids_logprob", p.token_ids.size(), kMaxLogprobIds);
  for (const int32_t id : p.token_ids) CheckId("token_ids_logprob", id, vocab_size);
}

void Validate(const RoutedExpertsParams& p, int64_t prompt_length, bool model_has_experts) {
  if (p.enabled && !model_has_experts)
    throw Invalid("return_routed_experts: this model has no experts");
  if (p.start < 0 || p.start > prompt_length)
    throw Invalid("routed_experts_start_len is {}, want 0 to {}, the prompt's length", p.start,
                  prompt_length);
}

}  // namespace switchyard
