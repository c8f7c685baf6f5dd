// The interface for recorders of routing and expert load.
#pragma once

#include <cstdint>
#include <span>

#include "moe/placement.h"
#include "moe/runner.h"

namespace switchyard {

// The tokens of one round that a rank reports. Over all ranks of the world, every token of the pass
// is reported exactly once per layer. Views, valid during the call.
struct RoutedTokens {
  // Index in the rank's attention group in this pass; rows are consecutive. 0 if there are none.
  int64_t first_row = 0;
  int64_t tokens = 0;
  std::span<const int32_t> logical;  // [tokens, top_k] the router's selection, −1 for none
  // [tokens, k] physical experts, −1 for none. One slot more than top_k if the shared expert is
  // dispatched too.
  std::span<const int32_t> physical;
};

// Called by the MoE layers of one rank (MoeBackend::Observe), on the rank's thread.
class RoutingObserver {
 public:
  virtual ~RoutingObserver() = default;
  // The layer's placement, before its first pass and after each change.
  virtual void OnPlacement(int layer, const ExpertPlacement& placement) = 0;
  // Each round of each pass, empty rounds included.
  virtual void OnRoute(int layer, const RoutedTokens& tokens) = 0;
  // Whether to call OnDispatch, once per round with the rows dispatched to this rank's experts. A
  // fused operator does not expose these rows and is then rejected.
  virtual bool wants_dispatch() const { return false; }
  virtual void OnDispatch(int /*layer*/, const GroupedRows& /*rows*/) {}
};

}  // namespace switchyard
