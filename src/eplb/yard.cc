#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/error.h"
#include "eplb/layer_plan.h"
#include "eplb/planner.h"
#include "eplb/water_filling.h"

namespace switchyard {
namespace {

// Sweeps of water-filling for each scenario; an approximate optimum suffices.
constexpr int kSweeps = 4;
// Bins whose load is this close to the mean, relative to it, count as balanced.
constexpr double kEven = 0.005;

// Tolerances of a repair, relative. slack: RepairPlan moves a replica to a hotter expert if the
// load differs by more than this. even: swaps stop when the most loaded bin is this close to the
// mean.
struct Repair {
  double slack, even;
};
constexpr Repair kRepairs[] = {{0.25, 0.05}, {0.1, 0.01}};

class LayerPlanner {
 public:
  LayerPlanner(const LoadHistory& history, const RankTopology& topology,
               const std::vector<RankSlots>& bins, int physical, const YardOptions& options)
      : history_(history),
        topology_(topology),
        bins_(bins),
        options_(options),
        bin_of_(physical, -1) {
    for (size_t b = 0; b < bins.size(); ++b)
      std::fill(bin_of_.begin() + bins[b].begin, bin_of_.begin() + bins[b].end, b);
  }

  // Plans one layer. `previous` is empty if nothing is loaded yet.
  void Plan(int layer, std::span<const float> forecast, std::span<const int32_t> previous,
            std::span<int32_t> next) {
    const std::vector<double> load(forecast.begin(), forecast.end());
    LayerPlan plan(bins_, static_cast<int>(next.size()), load);
    if (previous.empty()) {
      FromScratch(&plan);
      std::ranges::copy(plan.map(), next.begin());
      return;
    }
    scenarios_ = LoadScenarios(history_, layer, load, options_.scenarios);
    previous_ = previous;
    least_ = std::numeric_limits<double>::infinity();
    plan.Assign(previous);
    const bool valid = IsComplete(plan);
    if (valid) Consider(plan.map(), Time(plan.map()), next);
    // Cost(1, 1) is a lower bound for all other plans: no plan takes less time than balanced ranks,
    // and every plan except the current placement moves at least one expert.
    if (least_ <= Cost(1, 1)) return;
    LayerPlan anew(bins_, static_cast<int>(next.size()), load);
    FromScratch(&anew);
    const double time_anew = Time(anew.map());
    // A repaired plan is seldom more balanced than a plan from scratch, and it moves at least one
    // expert. So this cost is an approximate lower bound for repaired plans.
    if (least_ <= Cost(time_anew, 1)) return;
    for (const Repair& repair : kRepairs) {
      RepairPlan(repair.slack, options_.budget, &plan);
      plan.ImproveBySwaps(repair.even, options_.budget);
      Consider(plan.map(), Time(plan.map()), next);
    }
    // A plan from scratch usually moves more than half of the experts, so this cost is an
    // approximate lower bound for it.
    if (least_ <= Cost(time_anew, static_cast<double>(next.size()) / 2)) return;
    std::vector<int32_t> matched(anew.map().begin(), anew.map().end());
    MatchRanks(previous, bins_, topology_.nodes, history_.experts, options_.node_price, matched);
    Consider(matched, time_anew, next);
  }

 private:
  void FromScratch(LayerPlan* plan) const {
    PlanFromScratch(plan);
    plan->ImproveBySwaps(kEven, options_.budget);
  }

  bool IsComplete(const LayerPlan& plan) const {
    for (const RankSlots& slots : bins_)
      for (int p = slots.begin; p < slots.end; ++p)
        if (plan.map()[p] < 0) return false;
    for (int32_t e = 0; e < plan.experts(); ++e)
      if (plan.count(e) == 0) return false;
    return true;
  }

  // Time of a step with placement `map`, relative to the time with balanced ranks.
  double Time(std::span<const int32_t> map) {
    filling_.Reset(static_cast<int>(bins_.size()), history_.experts, bin_of_, map);
    double time = 0;
    for (const std::vector<double>& scenario : scenarios_) {
      const double max_load = filling_.Fill(scenario, kSweeps);
      time += filling_.mean() > 0 ? max_load / filling_.mean() : 1;
    }
    return time / static_cast<double>(scenarios_.size());
  }

  // Cost of a plan with relative time `time`. `moved`: number of experts received from the same
  // node, plus node_price times the number received from other nodes.
  double Cost(double time, double moved) const {
    return options_.horizon * (time + (moved > 0 ? options_.least_gain : 0)) +
           options_.move_price * moved / static_cast<double>(bins_.size());
  }

  // Copies `map` to `next` if its cost is the lowest so far. `time`: the result of Time(map).
  void Consider(std::span<const int32_t> map, double time, std::span<int32_t> next) {
    const Moves moves = CountMoves(previous_, map, topology_, history_.experts);
    const double cost = Cost(time, static_cast<double>(moves.same_node) +
                                       options_.node_price * static_cast<double>(moves.other_node));
    if (cost >= least_) return;
    least_ = cost;
    std::ranges::copy(map, next.begin());
  }

  const LoadHistory& history_;
  const RankTopology& topology_;
  const std::vector<RankSlots>& bins_;
  const YardOptions& options_;
  std::vector<int32_t> bin_of_;  // [physical]
  std::vector<std::vector<double>> scenarios_;
  std::span<const int32_t> previous_;
  WaterFilling filling_;
  double least_ = 0;
};

}  // namespace

void CheckPrevious(const Placement* previous, const LoadHistory& history, int physical) {
  if (previous != nullptr &&
      (previous->layers != history.layers || previous->physical != physical ||
       previous->logical != history.experts))
    throw Invalid(
        "yard: the previous placement has {} layers, {} slots and {} experts; want {}, "
        "{} and {}",
        previous->layers, previous->physical, previous->logical, history.layers, physical,
        history.experts);
}

Placement PlanYard(const LoadHistory& history, const RankTopology& topology, int physical,
                   const Placement* previous, const YardOptions& options) {
  ValidateTopology(topology, physical, history.experts);
  CheckPrevious(previous, history, physical);
  const LoadForecast forecast = Forecast(history);
  const std::vector<RankSlots> bins = LivingSlots(topology, physical);
  LayerPlanner choice(history, topology, bins, physical, options);
  Placement placement(history.layers, physical, history.experts);
  for (int layer = 0; layer < history.layers; ++layer)
    choice.Plan(layer, forecast.Layer(layer),
                previous != nullptr ? previous->Layer(layer) : std::span<const int32_t>(),
                placement.Layer(layer));
  return placement;
}

}  // namespace switchyard
