// Replays a recorded load: plan on the past, judge on what came.
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
  int window = 50;  // recorded steps that a plan sees; the first as many are not judged
  int every = 50;   // steps from plan to plan
  YardOptions yard;
  std::function<void(int step)> progress;  // or nothing: is told each step that is begun
};

// Of judged steps: those after the first window.
struct SimulateResult {
  int first_step = 0;
  // Mean over layers of mean / max rank load, with the trivial placement and replicas evenly used,
  // and with the plans. [steps]
  std::vector<double> before, after;
  // Mean over layers of each rank's load by the mean rank's. [steps, ranks]
  std::vector<float> load_before, load_after;
  struct Plan {
    int step = 0;   // the first that it holds for
    Moves moves;    // experts received, over all layers; at first, from the trivial placement
    double ms = 0;  // that planning took, for all layers
  };
  std::vector<Plan> plans;
  Moves moves() const;     // of all plans
  double plan_ms() const;  // mean
  double mean_before() const;
  double mean_after() const;
};

// The plan made at a step holds from that step on. Error kInvalid where nothing is left to judge,
// and PlanPlacement's.
SimulateResult Simulate(const LoadHistory& trace, const SimulateOptions& options);

// [layers] the mean over steps of mean / max rank load, were each step a batch. `placement` is
// valid (ValidatePlacement) and of the history's layers and experts.
std::vector<double> LayerBalancedness(const LoadHistory& history, const Placement& placement,
                                      EpDispatchAlgorithm dispatch, const RankTopology& topology);

}  // namespace switchyard
