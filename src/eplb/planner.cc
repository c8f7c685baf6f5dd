#include "eplb/planner.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {

EplbAlgorithm ParseEplbAlgorithm(const std::string& name) {
  if (name == "auto") return EplbAlgorithm::kAuto;
  if (name == "deepseek") return EplbAlgorithm::kDeepSeek;
  if (name == "deepseek_hierarchical") return EplbAlgorithm::kDeepSeekHierarchical;
  if (name == "elasticity_aware") return EplbAlgorithm::kElasticityAware;
  if (name == "yard") return EplbAlgorithm::kYard;
  throw Invalid(
      "--eplb-algorithm {}: want auto, deepseek, deepseek_hierarchical, elasticity_aware or yard",
      name);
}

Placement PlanPlacement(EplbAlgorithm algorithm, const PlanRequest& request) {
  CHECK(request.history != nullptr);
  const LoadHistory& history = *request.history;
  const RankTopology& topology = request.topology;
  const size_t want = static_cast<size_t>(std::max(history.steps, 0)) *
                      std::max(history.layers, 0) * std::max(history.experts, 0);
  if (want == 0 || history.counts.size() != want)
    throw Invalid("{} counts do not match {} steps, {} layers and {} experts",
                  history.counts.size(), history.steps, history.layers, history.experts);
  int32_t signs = 0;  // sign bits of all counts; branch-free, because there are about 10^6 counts
  for (const int32_t count : history.counts) signs |= count;
  if (signs < 0) throw Invalid("a token count is negative");
  ValidateTopology(topology, request.physical, history.experts);
  const bool equal = topology.EqualRanks();
  if (!equal && algorithm != EplbAlgorithm::kAuto && algorithm != EplbAlgorithm::kYard)
    throw Invalid(
        "deepseek, deepseek_hierarchical and elasticity_aware plan for equal ranks, but the ranks "
        "have their own numbers of slots or costs; want auto or yard");
  switch (algorithm) {
    case EplbAlgorithm::kDeepSeek:
    case EplbAlgorithm::kDeepSeekHierarchical:
      if (topology.NumAlive() < topology.ranks)
        throw Invalid(
            "deepseek plans for all ranks, but only {} of {} are alive; want elasticity_aware "
            "or yard, which use living ranks only",
            topology.NumAlive(), topology.ranks);
      return PlanDeepSeek(history, topology, request.physical,
                          algorithm == EplbAlgorithm::kDeepSeekHierarchical)
          .placement;
    case EplbAlgorithm::kElasticityAware:
      return PlanElastic(history, topology, request.physical);
    case EplbAlgorithm::kAuto:
    case EplbAlgorithm::kYard:
      break;
  }
  if (!equal)
    return PlanUnequal(history, topology, request.physical, request.previous, request.yard);
  return PlanYard(history, topology, request.physical, request.previous, request.yard);
}

}  // namespace switchyard
