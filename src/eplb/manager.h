// Online expert-parallel load balancing (--enable-eplb): counts loads, plans, migrates experts.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "eplb/courier.h"
#include "eplb/load_window.h"
#include "eplb/manager_options.h"
#include "eplb/migration.h"
#include "eplb/plan_job.h"
#include "eplb/planner.h"
#include "eplb/rebalance_trigger.h"
#include "moe/router/routing_observer.h"

namespace switchyard {

struct EplbShape {
  int layers = 0;     // layers of the model, including dense layers
  int experts = 0;    // logical
  int redundant = 0;  // physical experts beyond the logical ones
  int groups = 1;     // expert groups of group-limited routing (n_group)
  int nodes = 1;      // hosts; 1 if hosts have unequal numbers of EP ranks
  bool shared_dispatched = false;
  // As in RankTopology.
  std::vector<int32_t> slots;
  std::vector<RankCost> costs;
  int sources = 0;
};

// One per rank, next to the model that it observes; borrows `comm`. Used by the rank's thread only.
// BeginPass, EndPass and Rebalance are called on every rank around the same passes. With pipeline
// stages, the managers of a stage plan and move its layers, independently of other stages. A stage
// without experts has none. In the text below, ranks are those of the stage, and rank 0 is its
// first one. The traffic is small. Counts are all-reduced about 50 times per
// --eplb-rebalance-num-iterations passes. While a plan is computed or layers are migrating, ranks
// exchange a small message before each pass.
//
// Every explicit request triggers a plan. Two other events trigger a plan only if the mean
// balancedness (mean / max rank load) is at most min_utilization. One is the end of num_iterations
// passes since the last rebalance. The other is a changed load distribution (RebalanceTrigger); a
// second plan follows once the recent steps contain only the new load. Rank 0 plans on a separate
// thread and broadcasts the plan. A Migration moves the layers that the plan changes. Without a
// request it skips layers whose gain is below the cost of their moves (plan_job.h).
class EplbManager : public RoutingObserver {
 public:
  // Throws Error kInvalid (from PlanPlacement) if the planner cannot place these experts on `ranks`
  // EP ranks.
  static void Check(const EplbOptions& options, const EplbShape& shape, int ranks);

  // Allocates symmetric memory. Throws the errors of Validate and Check (kInvalid).
  EplbManager(const EplbOptions& options, const EplbShape& shape, RankComm& comm);

  // Bytes that the manager allocates in a rank's arena.
  static size_t BytesPerRank(const MeshShape& shape) {
    return ExpertCourier::BytesPerRank(shape.tp);
  }

  // Call it before the first pass. Collective.
  void Attach(MovableExperts* experts);
  // Stops a migration on this rank only. Call it before the experts are destroyed; no pass may
  // follow.
  void Detach() { migration_.reset(); }

  void OnPlacement(int /*layer*/, const ExpertPlacement& /*placement*/) override {}
  void OnRoute(uint64_t pass, int layer, const RoutedTokens& tokens) override;
  bool needs_tokens() const override { return false; }
  void OnCounts(uint64_t pass, int layer, const RoutedCounts& counts) override;

  // Call BeginPass before each pass. While `busy`, call it also when no pass runs because there are
  // no tokens. BeginPass may switch layers to another placement; the placement applies to this pass
  // and later ones. On a GPU an earlier pass may still be in flight. `pass`: as for OnRoute.
  void BeginPass();
  void EndPass(uint64_t pass);
  // Call it instead of EndPass for an aborted pass, whose choices do not count.
  void AbortPass(uint64_t pass);
  // Whether a plan is being computed or carried out; equal on every rank.
  bool busy() const;

  // Requests a plan now, even if the load is balanced. Returns the reason if the request is
  // refused, the same on every rank; empty if accepted.
  std::string Rebalance();
  std::string WhyNotRebalance() const;  // the reason alone

  EplbStatus Status() const;
  int num_moe_layers() const { return static_cast<int>(layers_.size()); }
  // Number of changes of a layer's placement so far; equal on every rank.
  int64_t switches() const { return switches_; }
  // [layers of the model, slots] the logical expert in each slot; −1 in layers without experts.
  std::vector<int32_t> Slots() const;

 private:
  // The two functions below plan for the load of the last `steps` steps.
  void ConsiderPlanning(const char* trigger, int steps);
  void StartPlanning(const char* trigger, int steps);
  void ReceivePlan();
  void StartMigration(const Placement& plan);
  void StepMigration();
  void Finish();
  void Fail(const std::string& why, bool timed_out);
  Placement Current() const;

  const EplbOptions options_;
  const EplbShape shape_;
  RankComm& comm_;
  const EplbAlgorithm algorithm_;
  const RankTopology topology_;
  const bool is_leader_;  // the first rank of the stage
  MovableExperts* experts_ = nullptr;
  std::vector<int> layers_;    // MoE layers
  std::vector<int> index_of_;  // [layers of the model] index into layers_; −1: dense
  std::optional<LoadWindow> window_;
  RebalanceTrigger trigger_;
  PlanJob plan_;
  int not_worth_moving_ = 0;  // layers whose moves gain too little (plan_job.h)
  ExpertCourier courier_;
  bool sends_ = false;  // whether experts are also received from other ranks
  std::unique_ptr<Migration> migration_;
  std::chrono::steady_clock::time_point began_;
  EplbStatus status_;
  int64_t switches_ = 0;
};

}  // namespace switchyard
