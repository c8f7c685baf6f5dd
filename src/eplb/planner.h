// Planners of placements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// `yard` planner: trades off the balance that each batch can reach against the cost of moves.

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

// Error kInvalid if the previous placement (null: none) has other layers, experts or slots than
// `history` and `physical`.
void CheckPrevious(const Placement* previous, const LoadHistory& history, int physical);

// Plans each layer separately, on its load forecast (Forecast). Candidates: the current
// placement; the current placement repaired by few changes; and a plan from scratch with its parts
// matched to the ranks that already hold them (layer_plan.h). The maximum rank load
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

// Planner of unequal ranks, such as a GPU and a CPU: ranks with their own numbers of slots and
// their own costs (RankTopology).

// Plans each layer separately, for a small time of the slowest rank. The time of a rank is that of
// its rows and of the experts that have rows (RankCost). The time of an expert with replicas is
// either divided over their ranks, or spent on one of them, whichever is faster.
//
// From scratch there are two starting points: the most loaded experts on the fastest rank, and each
// expert, in descending order of load, on the rank that then has the least time. Swaps and moves
// between the slowest rank and the others follow, then replicas of experts of the slowest rank.
// Further slots hold replicas of the most loaded experts. With `previous`, candidates are also that
// placement and the placement after some swaps, and costs of moves count as in PlanYard. If slots
// are divided evenly, PlanYard's plan for equal ranks is a candidate too, so the result is never
// worse than that plan.
//
// A local search: about as good as the best placement in small cases (unequal_ranks_test.cc), but
// without a guarantee. Other properties and errors: those of PlanYard.
Placement PlanUnequal(const LoadHistory& history, const RankTopology& topology, int physical,
                      const Placement* previous, const YardOptions& options = {});

// Selects placement planners by name.

// `--eplb-algorithm`. All names except `yard` are SGLang's.
enum class EplbAlgorithm {
  kAuto,                  // yard
  kDeepSeek,              // PlanDeepSeek, distributes experts over all ranks
  kDeepSeekHierarchical,  // PlanDeepSeek, assigns groups of experts to nodes first
  kElasticityAware,       // PlanElastic
  kYard,                  // PlanYard
};
// Error kInvalid lists the names.
EplbAlgorithm ParseEplbAlgorithm(const std::string& name);

struct PlanRequest {
  const LoadHistory* history = nullptr;
  RankTopology topology;
  int physical = 0;                     // slots on all ranks, alive or dead
  const Placement* previous = nullptr;  // null: nothing is loaded yet
  YardOptions yard;
};

// A pure function: equal requests give equal plans on every rank; no weights are moved. The plan is
// valid (ValidatePlacement) for the living ranks. For unequal ranks (RankTopology::EqualRanks),
// `auto` and `yard` are PlanUnequal. Error kInvalid if there are no steps, if counts have an
// inconsistent size, for `deepseek*` with dead ranks, or for `deepseek*` and `elasticity_aware`
// with unequal ranks. Also throws the errors of ValidateTopology and of the algorithm.
Placement PlanPlacement(EplbAlgorithm algorithm, const PlanRequest& request);

// DeepSeek's EPLB: replicates the most loaded experts, then packs them greedily.

struct DeepSeekPlan {
  Placement placement;
  std::vector<int32_t> replica;  // [layers, physical] index among its expert's replicas
};

// Algorithm of github.com/deepseek-ai/EPLB (eplb.py), with its float32 sums and tie-breaking order,
// so that plans equal those of the reference. The plan is for the load summed over all steps, and
// for all ranks, alive or dead. Error kInvalid if `physical` is not divisible by ranks, and for
// `hierarchical` if groups are not divisible by nodes or experts not by groups.
//
// Global: each replica goes to the expert with the highest load per replica. Replicas are packed
// in order of decreasing load onto the least loaded rank with a free slot. Two replicas of an
// expert may land on one rank. Hierarchical: groups of experts are packed onto nodes first; the
// other steps run within each node.
DeepSeekPlan PlanDeepSeek(const LoadHistory& history, const RankTopology& topology, int physical,
                          bool hierarchical);

// Placements for the ranks that are still alive.

// There are three cases. If slots do not divide evenly over ranks, the plan is the initial plan of
// `yard` (PlanFromScratch). Otherwise, if all ranks are alive, it is DeepSeek's plan
// (PlanDeepSeek), which is hierarchical if the groups of experts divide evenly over the nodes.
// Otherwise it is DeepSeek's global plan for the living ranks, placed in their slots, as in
// SGLang's elasticity_aware.
//
// Every expert has a slot on a living rank; slots of dead ranks are −1. Throws the errors of
// ValidateTopology (kInvalid).
Placement PlanElastic(const LoadHistory& history, const RankTopology& topology, int physical);

}  // namespace switchyard
