#include "engine/sampler/logprobs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/sampler/softmax.h"

namespace switchyard {

namespace {

// The `count` largest of `values`, best first. One pass with a heap whose front is the worst entry.
std::vector<TokenLogprob> Largest(std::span<const float> values, size_t count) {
  const auto better = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  std::vector<TokenLogprob> heap;
  heap.reserve(count);
  for (size_t i = 0; i < values.size(); ++i) {
    const TokenLogprob candidate{static_cast<int32_t>(i), values[i]};
    if (heap.size() < count) {
      heap.push_back(candidate);
      std::push_heap(heap.begin(), heap.end(), better);
    } else if (candidate.logprob > heap.front().logprob) {  // among equals, the lower id stays
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = candidate;
      std::push_heap(heap.begin(), heap.end(), better);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), better);
  return heap;
}

}  // namespace

PositionLogprobs LogprobsAt(std::span<const float> logits, int32_t token,
                            const LogprobParams& params) {
  const float max = Max(logits);
  const double log_sum = max + std::log(ExpSum(logits, max));
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };

  PositionLogprobs out{.logprob = logprob(logits[token]), .token = token};
  if (params.rank) {
    const auto better = [limit = logits[token]](float logit) { return logit > limit; };
    out.rank = 1 + static_cast<int32_t>(std::count_if(logits.begin(), logits.end(), better));
  }
  if (params.top > 0) {
    out.top = Largest(logits, std::min<size_t>(params.top, logits.size()));
    for (TokenLogprob& entry : out.top) entry.logprob = logprob(entry.logprob);
  }
  out.requested.reserve(params.token_ids.size());
  for (const int32_t id : params.token_ids) out.requested.push_back({id, logprob(logits[id])});
  return out;
}

}  // namespace switchyard
