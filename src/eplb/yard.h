// `yard` planner: trades off the balance that each batch can reach against the cost of moves.
#pragma once

#include "eplb/types.h"

namespace switchyard {

struct YardOptions {
  // Cost of a plan in which every rank receives one expert from its own node, relative to the time
  // of a layer with balanced ranks. A transfer from another node costs node_price times as much.
  double move_price = 0.1;
  double node_price = 4;
  // Number of steps over which a plan's gain is counted.
  double horizon = 50;
  // Minimum gain of a plan as a fraction of a layer's time. Smaller gains are noise of the
  // evaluation.
  double least_gain = 0.01;
  // Maximum number of swaps, and maximum number of replicas moved, for one layer.
  int budget = 64;
  // A plan is evaluated on the loads of this number of recorded steps, the last ones.
  int scenarios = 4;
};

// Plans each layer separately, on its load forecast (forecast.h). Candidates: the current
// placement; the current placement repaired by few changes; and a plan from scratch with its parts
// matched to the ranks that already hold them (layer_plan.h, match_ranks.h). The maximum rank load
// is evaluated over the last recorded steps, scaled to the forecast, with `balanced` dispatch
// (water_filling.h). The candidate with the least cost is chosen:
//     horizon · max / mean
//     + move_price · (experts from the same node + node_price · experts from other nodes) / ranks
// So the current placement stays if no candidate gains more than it costs. If a plan as balanced as
// the one from scratch would not be worth even one move, the other candidates are not tried.
//
// Dead ranks get no experts; their experts are placed on living ranks. No rank holds an expert
// twice. `previous` is null or a placement with equal numbers of layers, slots and experts. A layer
// that lacks an expert in `previous`, or holds one twice on a rank, is always changed. Pure and
// deterministic: equal arguments give equal plans on every rank. Error kInvalid: errors of
// ValidateTopology.
Placement PlanYard(const LoadHistory& history, const RankTopology& topology, int physical,
                   const Placement* previous, const YardOptions& options = {});

}  // namespace switchyard
