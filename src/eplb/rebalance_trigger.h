// Decides after which passes a plan is due, and on which recorded steps it is based.
#pragma once

#include <cstdint>
#include <optional>

#include "eplb/load_window.h"

namespace switchyard {

// A plan is due at the end of --eplb-rebalance-num-iterations passes, or when the load has shifted
// to other experts. Depends on passes and counts only, so all ranks decide equally.
class RebalanceTrigger {
 public:
  // An early plan is due if at least this fraction of the load has shifted to other experts since
  // the last plan.
  static constexpr double kShapeChange = 0.25;

  struct Due {
    const char* name = "";  // "iterations", or "shape": a changed load distribution
    int steps = 0;          // number of recorded steps to plan for
  };

  explicit RebalanceTrigger(int64_t iterations) : iterations_(iterations) {}

  // Call when `passes` passes have ended. `whole`: the last of them completed a step of the window.
  // `busy`: a plan is in progress, so none is due. Unless `busy`, at most passes_left() passes.
  std::optional<Due> EndPasses(const LoadWindow& window, bool whole, bool busy,
                               int64_t passes = 1) {
    if (whole && steps_to_follow_up_ > 1) --steps_to_follow_up_;
    if (busy) return std::nullopt;
    passes_ += passes;
    if (passes_ >= iterations_) return Due{"iterations", RelevantSteps(window)};
    if (steps_to_follow_up_ == 1) {
      steps_to_follow_up_ = 0;
      return Due{"shape", LoadWindow::kRecent};
    }
    if (!whole || window.ShapeChange() <= kShapeChange) return std::nullopt;
    steps_to_follow_up_ = 1 + LoadWindow::kRecent;
    return Due{"shape", LoadWindow::kRecent};
  }
  // Call when a plan is due, and when a migration has ended: counts the passes from here.
  void Restart() { passes_ = 0; }
  int64_t passes_left() const { return iterations_ - passes_; }

  // Number of steps to plan for. After a change of the distribution, steps from before the change
  // are left out.
  static int RelevantSteps(const LoadWindow& window) {
    return window.ShapeChange() > kShapeChange ? LoadWindow::kRecent : LoadWindow::kSteps;
  }

 private:
  const int64_t iterations_;
  int64_t passes_ = 0;
  // Number of steps until the second plan after a changed distribution; 1: due now, 0: no second
  // plan is pending. The first plan is made while the recent steps still contain older load. The
  // second one is made when they contain only the new load.
  int steps_to_follow_up_ = 0;
};

}  // namespace switchyard
