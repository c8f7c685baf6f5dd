// Accumulated output of one generation.
#pragma once

#include "server/front/generation.h"

namespace switchyard {

// Text, tokens and log-probabilities of all events so far, concatenated. `last` is the most recent
// event, with the totals and the finish reason.
struct Accumulated {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> input_logprobs, output_logprobs;
  std::vector<int64_t> token_offsets;
  std::vector<uint32_t> token_ends;  // in `text`
  std::vector<int32_t> routed_experts;
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
    last = event;
  }
};

}  // namespace switchyard
