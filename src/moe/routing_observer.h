// Who watches what routers choose: recorders of load.
#pragma once

#include <cstdint>
#include <span>

#include "moe/placement.h"
#include "moe/runner.h"

namespace switchyard {

// The tokens of one round that a rank answers for: over the ranks of the world every token of the
// pass is in exactly one of these, in each layer. Views, valid during the call.
struct RoutedTokens {
  // Of the rank's attention group in this pass; the rows are consecutive. 0 where there are none.
  int64_t first_row = 0;
  int64_t tokens = 0;
  std::span<const int32_t> logical;  // [tokens, top_k] the router's choice, −1 for none
  // [tokens, k] the places that rows are sent to, −1 for none. One more slot than top_k where the
  // shared expert is dispatched as well.
  std::span<const int32_t> physical;
};

// The MoE layers of one rank call it (MoeRuntime::Observe), on the rank's thread.
class RoutingObserver {
 public:
  virtual ~RoutingObserver() = default;
  // Where the layer's experts sit, before its first pass and whenever they have moved.
  virtual void OnPlacement(int layer, const ExpertPlacement& placement) = 0;
  // Each round of each pass, empty ones too.
  virtual void OnRoute(int layer, const RoutedTokens& tokens) = 0;
  // Whether OnDispatch is wanted. It is called once a round with the rows that came for this rank's
  // experts. A fused operator, which does not show them, is refused then.
  virtual bool wants_dispatch() const { return false; }
  virtual void OnDispatch(int /*layer*/, const GroupedRows& /*rows*/) {}
};

}  // namespace switchyard
