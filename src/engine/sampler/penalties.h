// Logit adjustments before sampling: penalties, biases, and forbidden tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace switchyard {

// A pure function of the request and its tokens so far. Keeps no state per request, so retraction
// and batching cannot change the result. Each rank's sampler owns one object, with scratch sized by
// the vocabulary.
class Penalties {
 public:
  Penalties(int64_t vocab_size, std::vector<int32_t> eos_token_ids);

  // Whether Apply has any effect at this point of the output.
  static bool Needed(const SamplingParams& params, int64_t output_length);

  // In SGLang's order: frequency and presence are subtracted, then repetition scales, then biases
  // are added. Then some ids become −inf: end-of-sequence and stop ids while the output is shorter
  // than min_new_tokens, and ids outside of allowed_token_ids. The last id of an entry of bad_words
  // also becomes −inf if the output ends with the entry's other ids (vLLM's rule: the prompt does
  // not count).
  void Apply(const SamplingParams& params, std::span<const int32_t> prompt,
             std::span<const int32_t> output, std::span<float> logits);

 private:
  void Count(std::span<const int32_t> tokens);
  void Reset();
  void ForbidAllBut(std::span<const int32_t> allowed, std::span<float> logits);

  const std::vector<int32_t> eos_token_ids_;
  std::vector<int32_t> counts_;  // [vocab], zero between uses
  std::vector<int32_t> seen_;    // tokens whose count is not zero
};

}  // namespace switchyard
