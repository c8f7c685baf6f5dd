// Replays a recorded load: plans on past steps and evaluates the plans on the following steps.
#pragma once

#include <functional>
#include <vector>

#include "eplb/planner.h"
#include "eplb/replica_choice.h"

namespace switchyard {

struct SimulateOptions {
  EplbAlgorithm algorithm = EplbAlgorithm::kYard;
  EpDispatchAlgorithm dispatch = EpDispatchAlgorithm::kBalanced;
  RankTopology topology;
  int physical = 0;
  // Number of recorded steps that a plan uses. So the first `window` steps are not evaluated.
  int window = 50;
  int every = 50;  // number of steps between plans
  YardOptions yard;
  std::function<void(int step)> progress;  // optional: called at the start of each step
};

// Results over the evaluated steps, which are those after the first window.
struct SimulateResult {
  int first_step = 0;
  // [steps] Mean over layers of (mean / max rank load): for the trivial placement with evenly used
  // replicas, and for the plans.
  // For ranks with costs, times of ranks replace their loads.
  std::vector<double> before, after;
  // [steps] Time of the slowest rank (RankTimes), summed over layers.
  std::vector<double> time_before, time_after;
  // [steps, ranks] Mean over layers of each rank's load relative to the mean rank load.
  std::vector<float> load_before, load_after;
  struct Plan {
    int step = 0;  // first step in which the plan is in use
    // Experts received, over all layers. For the first plan, counted relative to the trivial
    // placement.
    Moves moves;
    double ms = 0;  // planning time for all layers
  };
  std::vector<Plan> plans;
  Moves moves() const;     // sum over all plans
  double plan_ms() const;  // mean over all plans
  double mean_before() const;
  double mean_after() const;
};

// A plan that is made before a step is in use from that step on. Error kInvalid if no step is left
// to evaluate. Also throws the errors of PlanPlacement.
SimulateResult Simulate(const LoadHistory& trace, const SimulateOptions& options);

// [layers] Mean over steps of (mean / max rank load), with each step as one batch. For ranks with
// costs, times of ranks replace their loads. `placement` must be valid (ValidatePlacement) and have
// the layers and experts of the history.
std::vector<double> LayerBalancedness(const LoadHistory& history, const Placement& placement,
                                      EpDispatchAlgorithm dispatch, const RankTopology& topology);
// [layers] Mean over steps of the time of the slowest rank (RankTimes). Arguments: as above.
std::vector<double> LayerTimes(const LoadHistory& history, const Placement& placement,
                               EpDispatchAlgorithm dispatch, const RankTopology& topology);

}  // namespace switchyard
