#include "engine/scheduler/sequence.h"

#include <algorithm>
#include <limits>

namespace switchyard {

Sequence::Sequence(EngineRequest from) : request(std::move(from)) {
  tokens = std::move(request.input_ids);
  request.input_ids.clear();
  prompt_length = length();
  if (request.routed_experts.enabled) next_routed = request.routed_experts.start;
  next_logprob = prompt_length;
  if (!request.output_ids.empty()) {
    Resume();
    return;
  }
  const LogprobParams& wanted = request.logprob;
  if (wanted.enabled && wanted.start >= 0 && wanted.start < prompt_length) {
    next_logprob = wanted.start;
    if (next_logprob == 0) {  // the first token has no preceding row
      input_logprobs.push_back(
          {.logprob = std::numeric_limits<float>::quiet_NaN(), .token = tokens[0]});
      next_logprob = 1;
    }
  }
}

// The front already has the log-probabilities of the prompt, which the first output had. It also
// has the routed experts of all rows before the last token.
void Sequence::Resume() {
  tokens.insert(tokens.end(), request.output_ids.begin(), request.output_ids.end());
  request.output_ids.clear();
  if (routed_experts_pending()) next_routed = std::max(next_routed, length() - 1);
  admitted_before = true;
  cached_tokens = request.cached_tokens;
}

int64_t Sequence::max_reusable() const {
  const int64_t reusable = std::min(length() - 1, next_routed);
  if (request.pooling == Pooling::kMean) return std::min(reusable, next_pooled);
  return logprobs_pending() ? std::min(reusable, next_logprob - 1) : reusable;
}

Range Sequence::LogitRows(int64_t rows) const {
  const int64_t end = computed + rows;
  const bool gives_token = end >= length();
  if (request.pooling == Pooling::kMean)
    return {std::min(end, std::max(computed, next_pooled)), end};
  // While logprobs of the prompt are pending, there is no output yet. So the rows that give
  // logprobs and the row that gives the next token are contiguous.
  if (logprobs_pending()) return {std::min(end, std::max(computed, next_logprob - 1)), end};
  return {gives_token ? length() - 1 : end, end};
}

}  // namespace switchyard
