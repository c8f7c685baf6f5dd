// A dispatcher and a runner in one.
#pragma once

#include <cstdint>

#include "moe/runner.h"
#include "moe/types.h"

namespace switchyard {

// Carries rows from their tokens through the experts and back as one operator, so that it may work
// on rows as they come and never lays out the rows of all experts. In the place of a dispatcher, a
// runner and the permutes between them; results are theirs, bit for bit. The rules of Dispatcher
// hold (every rank calls, in one order; a batch is its handle).
//
// Owned by the runtime, used by the rank's thread only.
class FusedExperts {
 public:
  virtual ~FusedExperts() = default;

  virtual bool Takes(WeightFormat format) const = 0;
  // Most tokens of one rank in one exchange.
  virtual int64_t MaxTokens(bool decode) const = 0;

  // x [topk.tokens, H] and `topk` must live, unchanged, until End returns.
  virtual void Begin(const float* x, const TopK& topk, bool decode, DispatchHandle* handle) = 0;
  // Runs this rank's experts on the rows of all ranks, and waits for the own tokens' outputs.
  // y [topk.tokens, H] as from Dispatcher::EndCombine.
  virtual void End(const ExpertBlock& block, DispatchHandle* handle, float* y) = 0;
};

}  // namespace switchyard
