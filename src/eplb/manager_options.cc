#include "eplb/manager_options.h"

#include "core/error.h"
#include "eplb/planner.h"
#include "eplb/rank_flags.h"
#include "eplb/replica_choice.h"

namespace switchyard {

void Validate(const EplbOptions& options) {
  ParseEplbAlgorithm(options.algorithm);
  const EpDispatchAlgorithm dispatch = ParseEpDispatchAlgorithm(options.dispatch);
  if (!ParseRankCosts("--eplb-rank-costs", options.rank_costs).empty() &&
      dispatch == EpDispatchAlgorithm::kLp)
    throw Invalid(
        "--ep-dispatch-algorithm lp divides rows over equal ranks; want balanced with "
        "--eplb-rank-costs");
  if (options.num_iterations < 1)
    throw Invalid("--eplb-rebalance-num-iterations {}: want at least 1", options.num_iterations);
  if (options.layers_per_chunk < -1 || options.layers_per_chunk == 0)
    throw Invalid("--eplb-rebalance-layers-per-chunk {}: want at least 1, or -1 for all layers",
                  options.layers_per_chunk);
  if (!(options.min_utilization >= 0 && options.min_utilization <= 1))
    throw Invalid("--eplb-min-rebalancing-utilization-threshold {}: want 0 to 1",
                  options.min_utilization);
  if (!(options.watchdog_seconds > 0))
    throw Invalid("--eplb-watchdog-timeout {}: want more than 0 seconds", options.watchdog_seconds);
}

std::string PlannerFor(const EplbOptions& options, int places, int ranks, bool equal_ranks) {
  if (ParseEplbAlgorithm(options.algorithm) != EplbAlgorithm::kAuto) return options.algorithm;
  const EpDispatchAlgorithm dispatch = ParseEpDispatchAlgorithm(options.dispatch);
  const bool divides =
      dispatch == EpDispatchAlgorithm::kBalanced || dispatch == EpDispatchAlgorithm::kLp;
  return divides || !equal_ranks || places % ranks != 0 ? "yard" : "deepseek";
}

const char* Name(EplbState state) {
  switch (state) {
    case EplbState::kIdle:
      return "idle";
    case EplbState::kPlanning:
      return "planning";
    case EplbState::kAgreed:
      return "agreed";
    case EplbState::kMoving:
      return "moving";
    case EplbState::kStopping:
      return "stopping";
    case EplbState::kDone:
      return "done";
  }
  return "";
}

}  // namespace switchyard
