// The interface of fused MoE operators: dispatch, experts and combine in one.
#pragma once

#include <cstdint>

#include "moe/runners/runner.h"
#include "moe/types.h"

namespace switchyard {

// Runs dispatch, experts and combine as one operator. It may process rows as they arrive and never
// materializes the rows of all experts. It replaces a dispatcher, a runner and their permutes;
// results are bit-identical to theirs. The rules of Dispatcher apply: all ranks make the same calls
// in the same order, and a batch's state is in its handle.
//
// Owned by the backend. Used by the rank's thread only.
class FusedExperts {
 public:
  virtual ~FusedExperts() = default;

  virtual bool Supports(WeightFormat format) const = 0;
  // Maximum tokens of one rank in one exchange.
  virtual int64_t MaxTokens(bool decode) const = 0;

  // x [topk.tokens, H] and `topk` must stay valid and unchanged until End returns.
  virtual void Begin(const float* x, const TopK& topk, bool decode, DispatchHandle* handle) = 0;
  // Runs this rank's experts on the rows of all ranks, and waits for the outputs of its own tokens.
  // y [topk.tokens, H] as from Dispatcher::EndCombine.
  virtual void End(const ExpertBlock& block, DispatchHandle* handle, float* y) = 0;
};

}  // namespace switchyard
