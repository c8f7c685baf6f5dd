// Implements PlanUnequal.
#include <algorithm>
#include <optional>
#include <utility>

#include "core/check.h"
#include "eplb/layer_plan.h"
#include "eplb/planner.h"
#include "eplb/rank_times.h"
#include "eplb/unequal_layer.h"

namespace switchyard {
namespace {

// Steps on which plans are compared, the last ones. More than in PlanYard: in a step of few tokens,
// few experts have rows.
constexpr int kScenarios = 16;
// Numbers of changes to the previous placement that are tried.
constexpr int kRepairs[] = {1, 4, 16, 64};

// [experts] the mean number of a step's passes in which each expert has rows.
std::vector<double> MeanPassesWithRows(const LoadHistory& history, int layer) {
  std::vector<double> mean(history.experts, 0.0);
  for (int step = 0; step < history.steps; ++step) {
    const std::span<const int32_t> counts = history.At(step, layer);
    for (int e = 0; e < history.experts; ++e)
      mean[e] += PassesWithRows(counts[e], history.passes) / history.steps;
  }
  return mean;
}

class LayerPlanner {
 public:
  LayerPlanner(const LoadHistory& history, const RankTopology& topology,
               const std::vector<RankSlots>& bins, const YardOptions& options)
      : history_(history), topology_(topology), bins_(bins), options_(options) {}

  // Plans one layer. `previous` is empty if nothing is loaded yet. `equal`: the plan for equal
  // ranks, or empty.
  void Plan(int layer, std::span<const float> forecast, std::span<const int32_t> previous,
            std::span<const int32_t> equal, std::span<int32_t> next) {
    const std::vector<double> load(forecast.begin(), forecast.end());
    SetScenarios(layer, load);
    previous_ = previous;
    candidates_.clear();
    const ExpertCosts mean(bins_, topology_, load, MeanPassesWithRows(history_, layer));
    const UnequalSearch search(bins_, mean, std::max(options_.budget, history_.experts));
    for (const bool fastest_first : {true, false}) Add(search.FromScratch(fastest_first), next);
    if (!equal.empty()) Add(BinExperts(bins_, history_.experts, equal), next);
    if (!previous.empty() && IsComplete(previous)) {
      BinExperts repaired(bins_, history_.experts, previous);
      Add(repaired, next);
      for (const int most : kRepairs) {
        if (search.Improve(std::min(most, options_.budget), &repaired) == 0) break;
        Add(repaired, next);
      }
    }
    std::ranges::copy(Cheapest(), next.begin());
  }

 private:
  struct Candidate {
    std::vector<int32_t> map;  // [physical]
    double time = 0;           // of the slowest rank, mean over the scenarios
    double moved = 0;          // experts received, those from other nodes times node_price
    double move_time = 0;      // Moves::time
  };

  void SetScenarios(int layer, std::span<const double> load) {
    scenarios_.clear();
    for (const std::vector<double>& scenario : LoadScenarios(history_, layer, load, kScenarios)) {
      std::vector<double> with_rows;
      for (const double rows : scenario) with_rows.push_back(PassesWithRows(rows, history_.passes));
      scenarios_.emplace_back(bins_, topology_, scenario, with_rows);
    }
  }

  // Whether each slot of a living rank has an expert, none of them twice on a rank, and each expert
  // has a slot.
  bool IsComplete(std::span<const int32_t> map) const {
    const BinExperts experts(bins_, history_.experts, map);
    for (size_t b = 0; b < bins_.size(); ++b)
      if (std::ssize(experts.of_bin[b]) != bins_[b].size()) return false;
    return std::ranges::none_of(experts.bins_of, [](const auto& bins) { return bins.empty(); });
  }

  // Adds a candidate whose experts keep their slots where they stay on a rank. `shape` [physical].
  void Add(const BinExperts& experts, std::span<const int32_t> shape) {
    Candidate candidate{.map = std::vector<int32_t>(shape.size(), -1)};
    for (size_t b = 0; b < bins_.size(); ++b) {
      const auto begin = static_cast<size_t>(bins_[b].begin);
      const std::span<const int32_t> wanted = experts.of_bin[b];
      CHECK_EQ(std::ssize(wanted), bins_[b].size());
      const auto places = std::span(candidate.map).subspan(begin, wanted.size());
      if (previous_.empty()) {
        std::ranges::copy(wanted, places.begin());
        std::ranges::sort(places);
      } else {
        KeepInSlots(previous_.subspan(begin, wanted.size()), wanted, places);
      }
    }
    for (const ExpertCosts& costs : scenarios_)
      candidate.time += SlowestTime(costs, experts) / static_cast<double>(scenarios_.size());
    if (!previous_.empty()) {
      const Moves moves = CountMoves(previous_, candidate.map, topology_, history_.experts);
      candidate.moved = static_cast<double>(moves.same_node) +
                        options_.node_price * static_cast<double>(moves.other_node);
      candidate.move_time = moves.time;
    }
    candidates_.push_back(std::move(candidate));
  }

  // The candidate with the least cost (PlanYard), where times are relative to the least one. If the
  // time of moves is known, it takes the place of their price.
  std::span<const int32_t> Cheapest() const {
    const double least = std::ranges::min_element(candidates_, {}, &Candidate::time)->time;
    const auto cost = [&](const Candidate& c) {
      const double time = least > 0 ? c.time / least : 1;
      const double moves = topology_.HasMoveCosts() && least > 0
                               ? c.move_time / least
                               : options_.move_price * c.moved / static_cast<double>(bins_.size());
      return options_.horizon * (time + (c.moved > 0 ? options_.least_gain : 0)) + moves;
    };
    return std::ranges::min_element(candidates_, {}, cost)->map;
  }

  const LoadHistory& history_;
  const RankTopology& topology_;
  const std::vector<RankSlots>& bins_;
  const YardOptions& options_;
  std::vector<ExpertCosts> scenarios_;
  std::span<const int32_t> previous_;
  std::vector<Candidate> candidates_;
};

}  // namespace

Placement PlanUnequal(const LoadHistory& history, const RankTopology& topology, int physical,
                      const Placement* previous, const YardOptions& options) {
  ValidateTopology(topology, physical, history.experts);
  CheckPrevious(previous, history, physical);
  std::optional<Placement> equal;
  if (topology.slots.empty()) {
    RankTopology plain = topology;
    plain.costs.clear();
    equal = PlanYard(history, plain, physical, previous, options);
  }
  const LoadForecast forecast = Forecast(history);
  const std::vector<RankSlots> bins = LivingSlots(topology, physical);
  LayerPlanner planner(history, topology, bins, options);
  Placement placement(history.layers, physical, history.experts);
  for (int layer = 0; layer < history.layers; ++layer)
    planner.Plan(layer, forecast.Layer(layer),
                 previous != nullptr ? previous->Layer(layer) : std::span<const int32_t>(),
                 equal ? std::as_const(*equal).Layer(layer) : std::span<const int32_t>(),
                 placement.Layer(layer));
  return placement;
}

}  // namespace switchyard
