// `yard`: placements for the freedom they leave each batch, by a price for what has to move.
#pragma once

#include "eplb/types.h"

namespace switchyard {

struct YardOptions {
  // Cost of receiving one expert on every rank, in times that a layer takes where its ranks are
  // even, from the same node; of that, node_price times as much from another.
  double move_price = 0.1;
  double node_price = 4;
  // Steps for which a plan's gain is counted.
  double horizon = 50;
  // What a plan has to gain at least, as a part of the time of a layer: less is noise of the
  // judgement.
  double least_gain = 0.01;
  // Most swaps, and most replicas moved, of one layer.
  int budget = 64;
  // Recorded steps, the last ones, whose noise a plan is judged by.
  int scenarios = 4;
};

// Each layer for itself, on the forecast of its load (forecast.h). Candidates: what there is; that,
// repaired by few changes; and a plan from nothing with its parts matched to ranks by what these
// hold already (layer_plan.h, match_ranks.h). Each is judged by the fullest rank, over the last
// recorded steps carried over to the forecast, with `balanced` dispatch (water_filling.h); taken is
// the one with the least
//     horizon · fullest / mean  +  move_price · (experts moved, from other nodes · node_price) /
//     ranks
// and so what there is, where nothing gains more than it costs. Where the plan from nothing, were
// it for free, would gain too little, the others are not tried.
//
// Ranks that are dead get nothing; what they held finds another home. No rank holds an expert
// twice. `previous` is null or a placement with as many layers, places and experts; layers of it
// that miss an expert, or hold one twice on a rank, never stay as they are. Pure and deterministic:
// equal arguments, equal plan, on every rank. Error kInvalid: ValidateTopology's.
Placement PlanYard(const LoadHistory& history, const RankTopology& topology, int physical,
                   const Placement* previous, const YardOptions& options = {});

}  // namespace switchyard
