// The interface for recorders of routing and expert load.
#pragma once

#include <cstdint>
#include <span>

#include "moe/placement/placement.h"
#include "moe/runners/runner.h"

namespace switchyard {

// The tokens of one round that a rank reports. All ranks of the world together report every token
// of the pass exactly once per layer. The spans are valid during the call only.
struct RoutedTokens {
  // Index of the first token in the rank's attention group in this pass; the tokens are
  // consecutive. 0 if there are none.
  int64_t first_row = 0;
  int64_t tokens = 0;
  std::span<const int32_t> logical;  // [tokens, top_k] the router's selection, −1 for none
  // [tokens, k] physical experts, −1 for none. One slot more than top_k if the shared expert is
  // dispatched too.
  std::span<const int32_t> physical;
  // The GPU computes all of these rows, whatever the placement is (moe/stream_experts.h).
  bool streamed = false;
};

// The choices of one layer in one pass, counted over the same tokens as RoutedTokens. The spans are
// valid during the call only.
struct RoutedCounts {
  std::span<const int32_t> logical;   // [num_experts] selections of each expert by the router
  std::span<const int32_t> physical;  // [num_physical] rows sent to each physical expert
  bool streamed = false;              // as in RoutedTokens
};

// Times that a rank spent in the stages of MoE layers, in nanoseconds. Dispatch and combine include
// waits for other ranks, and the collectives before and after the exchange. Routing is in none.
struct MoeTimes {
  int64_t dispatch = 0, experts = 0, combine = 0;

  MoeTimes& operator+=(const MoeTimes& more) {
    dispatch += more.dispatch;
    experts += more.experts;
    combine += more.combine;
    return *this;
  }
};

// Called by the MoE layers of one rank (MoeBackend::Observe), on the rank's thread. On CPUs it is
// called during the pass. On GPUs it is called after the pass, since the choices are on the device.
// `pass` is the number of the pass (MoeState::pass). Calls of several passes may be interleaved.
class RoutingObserver {
 public:
  virtual ~RoutingObserver() = default;
  // Called with the layer's placement, before its first pass and after each change. The placement
  // applies to passes that begin later, not to those in flight.
  virtual void OnPlacement(int layer, const ExpertPlacement& placement) = 0;
  // Called on CPUs for each round of each pass, including empty rounds. Called on GPUs for each
  // range of consecutive rows.
  virtual void OnRoute(uint64_t pass, int layer, const RoutedTokens& tokens) = 0;
  // Whether the observer needs OnRoute with the choices of each token. If not, a GPU may count the
  // choices itself, and call OnCounts once per layer and pass instead.
  virtual bool needs_tokens() const { return true; }
  virtual void OnCounts(uint64_t /*pass*/, int /*layer*/, const RoutedCounts& /*counts*/) {}
  // Whether the pass is observed. Called when the pass begins. GPUs record only passes that are
  // observed.
  virtual bool needs_pass(uint64_t /*pass*/) const { return true; }
  // Whether OnDispatch is called, once per round, with the rows dispatched to this rank's experts.
  // Fused operators do not expose these rows, so they are rejected if this is true.
  virtual bool needs_dispatch() const { return false; }
  virtual void OnDispatch(uint64_t /*pass*/, int /*layer*/, const GroupedRows& /*rows*/) {}
  // Called on CPUs after each batch of a layer. Called on GPUs once for a clocked pass
  // (MoeState::clocked), because reading a clock in every pass would take too long.
  virtual void OnTimes(uint64_t /*pass*/, const MoeTimes& /*times*/) {}
  // Whether GPUs clock some passes.
  virtual bool needs_times() const { return false; }
};

}  // namespace switchyard
