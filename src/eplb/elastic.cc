#include "eplb/elastic.h"

#include <algorithm>

#include "eplb/deepseek.h"
#include "eplb/layer_plan.h"

namespace switchyard {
namespace {

constexpr int kMaxSwaps = 64;

Placement PlanUneven(const LoadHistory& history, const std::vector<RankSlots>& living,
                     int physical) {
  Placement placement(history.layers, physical, history.experts);
  for (int layer = 0; layer < history.layers; ++layer) {
    std::vector<double> load(history.experts, 0.0);
    for (int step = 0; step < history.steps; ++step)
      for (int e = 0; e < history.experts; ++e) load[e] += history.At(step, layer)[e];
    LayerPlan plan(living, physical, load);
    PlanFromScratch(&plan);
    plan.ImproveBySwaps(/*tolerance=*/0, kMaxSwaps);
    std::ranges::copy(plan.map(), placement.Layer(layer).begin());
  }
  return placement;
}

}  // namespace

Placement PlanElastic(const LoadHistory& history, const RankTopology& topology, int physical) {
  ValidateTopology(topology, physical, history.experts);
  const std::vector<RankSlots> living = LivingSlots(topology, physical);
  if (physical % topology.ranks != 0) return PlanUneven(history, living, physical);
  if (topology.NumAlive() == topology.ranks) {
    const bool by_node =
        topology.groups % topology.nodes == 0 && history.experts % topology.groups == 0;
    return PlanDeepSeek(history, topology, physical, by_node).placement;
  }
  const int alive = topology.NumAlive(), per_rank = physical / topology.ranks;
  const Placement dense =
      PlanDeepSeek(history, {.ranks = alive}, per_rank * alive, /*hierarchical=*/false).placement;
  Placement placement(history.layers, physical, history.experts);
  for (int layer = 0; layer < history.layers; ++layer)
    for (int i = 0; i < alive; ++i)
      std::ranges::copy(dense.Layer(layer).subspan(static_cast<size_t>(i) * per_rank, per_rank),
                        placement.Layer(layer).begin() + living[i].begin);
  return placement;
}

}  // namespace switchyard
