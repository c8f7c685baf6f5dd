// The accumulated output of a generation, and its forms in responses.
#pragma once

#include <cstdint>

#include "server/api/json_body.h"
#include "server/front/generation.h"

namespace switchyard {

// Accumulated output of one generation.

// Text, tokens and log-probabilities of all events so far, concatenated. `last` has the totals and
// the finish reason of the most recent event, but not its output.
struct Accumulated {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> input_logprobs, output_logprobs;
  std::vector<int64_t> token_offsets;
  std::vector<uint32_t> token_ends;  // byte offsets in `text`; see GenerationEvent::token_ends
  std::vector<int32_t> routed_experts;
  std::vector<float> pooled;
  GenerationEvent last;

  void Add(const GenerationEvent& event) {
    for (const uint32_t end : event.token_ends)
      token_ends.push_back(static_cast<uint32_t>(text.size()) + end);
    text += event.text;
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    input_logprobs.insert(input_logprobs.end(), event.input_logprobs.begin(),
                          event.input_logprobs.end());
    output_logprobs.insert(output_logprobs.end(), event.output_logprobs.begin(),
                           event.output_logprobs.end());
    token_offsets.insert(token_offsets.end(), event.token_offsets.begin(),
                         event.token_offsets.end());
    routed_experts.insert(routed_experts.end(), event.routed_experts.begin(),
                          event.routed_experts.end());
    pooled.insert(pooled.end(), event.pooled.begin(), event.pooled.end());
    last.id = event.id;
    last.finish = event.finish;
    last.matched = event.matched;
    last.prompt_tokens = event.prompt_tokens;
    last.completion_tokens = event.completion_tokens;
    last.cached_tokens = event.cached_tokens;
    last.drafts = event.drafts;
    last.forced = event.forced;
    last.weight_version = event.weight_version;
    last.error = event.error;
    last.error_kind = event.error_kind;
  }
};

// SGLang's details of cached prompt tokens.

// Counts of cached prompt tokens by the memory that holds them. null if no tokens are cached, as in
// SGLang. `device` is the memory of the device that runs the model, even if that device is a CPU.
// `host` is 0, because this server has no second cache tier.
inline Json CachedTokensDetails(int32_t cached) {
  if (cached == 0) return nullptr;
  return {{"device", cached}, {"host", 0}};
}

}  // namespace switchyard
