// Observers and replica choosers of running layers.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/mesh.h"
#include "eplb/replica_choice.h"
#include "moe/router/physical_choice.h"
#include "moe/router/routing_observer.h"

namespace switchyard {

// Applies `--ep-dispatch-algorithm` in running layers.

// One per rank, used by the rank's thread only. `balanced` and `lp` divide the tokens that this
// rank routes in a round. Their choice depends on these tokens only. So ranks that route the same
// tokens choose the same replicas. Ranks that route different tokens start at different replicas.
class BatchReplicas : public ReplicaChooser {
 public:
  // `scatters`: whether each rank routes its own tokens (ScattersTokens). kStatic is not supported
  // here, because layers implement it themselves. `costs`: of the EP ranks (RankTopology).
  BatchReplicas(EpDispatchAlgorithm algorithm, const Mesh& mesh, bool scatters,
                std::vector<RankCost> costs = {});

  void OnPlacement(int layer, const ExpertPlacement& placement) override;
  void Choose(const RoundToChoose& round, const TopK& logical, TopK* physical) override;

 private:
  struct Layer {
    ExpertLocation location;
    BatchDivider divider;
  };
  void ChooseAtRandom(const RoundToChoose& round, const Layer& layer, const TopK& logical,
                      TopK* physical) const;
  void Divide(Layer& layer, const TopK& logical, TopK* physical);

  const EpDispatchAlgorithm algorithm_;
  const RankTopology topology_;
  const uint64_t seed_;
  std::map<int, Layer> layers_;
  std::vector<int32_t> counts_, shares_, ordinal_;  // scratch
};

// Composite of several observers of the same layers.

// Forwards each call to all observers, which must outlive it.
class Observers : public RoutingObserver {
 public:
  explicit Observers(std::vector<RoutingObserver*> all) : all_(std::move(all)) {}

  void OnPlacement(int layer, const ExpertPlacement& placement) override {
    for (RoutingObserver* one : all_) one->OnPlacement(layer, placement);
  }
  void OnRoute(uint64_t pass, int layer, const RoutedTokens& tokens) override {
    for (RoutingObserver* one : all_) one->OnRoute(pass, layer, tokens);
  }
  bool needs_tokens() const override {
    return std::ranges::any_of(all_, [](const auto* one) { return one->needs_tokens(); });
  }
  void OnCounts(uint64_t pass, int layer, const RoutedCounts& counts) override {
    for (RoutingObserver* one : all_) one->OnCounts(pass, layer, counts);
  }
  bool needs_pass(uint64_t pass) const override {
    return std::ranges::any_of(all_, [&](const auto* one) { return one->needs_pass(pass); });
  }
  bool needs_dispatch() const override {
    for (const RoutingObserver* one : all_)
      if (one->needs_dispatch()) return true;
    return false;
  }
  void OnDispatch(uint64_t pass, int layer, const GroupedRows& rows) override {
    for (RoutingObserver* one : all_)
      if (one->needs_dispatch()) one->OnDispatch(pass, layer, rows);
  }
  void OnTimes(uint64_t pass, const MoeTimes& times) override {
    for (RoutingObserver* one : all_) one->OnTimes(pass, times);
  }
  bool needs_times() const override {
    return std::ranges::any_of(all_, [](const auto* one) { return one->needs_times(); });
  }

 private:
  const std::vector<RoutingObserver*> all_;
};

}  // namespace switchyard
