#include "eplb/plan_value.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/check.h"

namespace switchyard {
namespace {

constexpr double kNodePrice = 4;   // as YardOptions::node_price
constexpr double kMinGain = 0.01;  // as YardOptions::least_gain

// Rows of the most loaded rank in each step, summed over the steps.
double FullestRows(const LoadHistory& history, int layer, EpDispatchAlgorithm dispatch,
                   const RankTopology& topology, const Placement& placement) {
  const ExpertLocation location(placement);
  BatchDivider divider;
  divider.Reset(dispatch, location, layer, topology);
  std::vector<int32_t> shares(placement.physical);
  double sum = 0;
  for (int step = 0; step < history.steps; ++step) {
    divider.Divide(history.At(step, layer), shares);
    int64_t fullest = 0;
    for (const RankSlots& slots : LivingSlots(topology, placement.physical))
      fullest = std::max(fullest, std::accumulate(shares.begin() + slots.begin,
                                                  shares.begin() + slots.end, int64_t{0}));
    sum += static_cast<double>(fullest);
  }
  return sum;
}

}  // namespace

int ResetLayersNotWorthMoving(const LoadHistory& history, int64_t passes,
                              EpDispatchAlgorithm dispatch, const RankTopology& topology,
                              const Placement& previous, Placement* plan) {
  CHECK(history.layers == plan->layers && history.experts == plan->logical);
  if (dispatch == EpDispatchAlgorithm::kFake) return 0;
  // Evaluates kLp as kBalanced, which is faster and has nearly equal results.
  if (dispatch == EpDispatchAlgorithm::kLp) dispatch = EpDispatchAlgorithm::kBalanced;
  int reset = 0;
  for (int layer = 0; layer < plan->layers; ++layer) {
    if (std::ranges::equal(previous.Layer(layer), plan->Layer(layer))) continue;
    const double before = FullestRows(history, layer, dispatch, topology, previous);
    const double gain = before - FullestRows(history, layer, dispatch, topology, *plan);
    const Moves moves =
        CountMoves(previous.Layer(layer), plan->Layer(layer), topology, plan->logical);
    const double received =
        static_cast<double>(moves.same_node) + kNodePrice * static_cast<double>(moves.other_node);
    const double cost = kRowsPerExpert * received / topology.NumAlive() + 2 * std::sqrt(before);
    const double least = kMinGain * (before + kRowsPerExpert * static_cast<double>(passes));
    if (gain > std::max(cost, least)) continue;
    std::ranges::copy(previous.Layer(layer), plan->Layer(layer).begin());
    ++reset;
  }
  return reset;
}

}  // namespace switchyard
