// Keeps the load of ranks even while they serve (--enable-eplb): counts, plans, moves.
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
#include "moe/routing_observer.h"

namespace switchyard {

struct EplbShape {
  int layers = 0;     // of the model, those without experts too
  int experts = 0;    // logical
  int redundant = 0;  // physical experts beyond the logical ones
  int groups = 1;     // of experts, as the router limits its choice (n_group)
  int nodes = 1;      // hosts; 1 too where they hold unequal parts of the EP ranks
  bool shared_dispatched = false;
};

// One per rank, next to the model that it observes; borrows `comm`. The rank's thread; BeginPass,
// EndPass and Rebalance are called on every rank around the same passes and exchange a little: a
// sum of counts every fiftieth part of --eplb-rebalance-num-iterations, and a word before each pass
// while a plan is made or layers are under way.
//
// Every num_iterations passes since the last rebalance, or when the load has another shape, where
// the mean balancedness (mean / max rank load) is not over min_utilization, and whenever it is
// asked for, rank 0 plans on a thread of its own and tells the others, and a Migration moves the
// layers that the plan changes.
class EplbManager : public RoutingObserver {
 public:
  // Part of the load that has to go to other experts than it was planned for, for a plan before its
  // time.
  static constexpr double kShapeChange = 0.25;

  // Error kInvalid where the planner cannot place such experts on `ranks` EP ranks, as
  // PlanPlacement says it.
  static void Check(const EplbOptions& options, const EplbShape& shape, int ranks);

  // Allocates symmetrically. Error kInvalid as Validate and Check have it.
  EplbManager(const EplbOptions& options, const EplbShape& shape, RankComm& comm);

  // What the manager takes of a rank's arena.
  static size_t BytesPerRank(const MeshShape& shape) {
    return ExpertCourier::BytesPerRank(shape.tp);
  }

  // Before the first pass; collective.
  void Attach(MovableExperts* experts);
  // Before those experts are gone: ends what is under way on this rank alone. No pass comes after.
  void Detach() { moving_.reset(); }

  void OnPlacement(int /*layer*/, const ExpertPlacement& /*placement*/) override {}
  void OnRoute(int layer, const RoutedTokens& tokens) override;

  // BeginPass is called without a pass too while `busy` and there are no tokens.
  void BeginPass();
  void EndPass();
  // Whether a plan is made or carried out; equal on every rank.
  bool busy() const;

  // Plans now, however even the load is. Why not, in words, the same on every rank; empty: it does.
  std::string Rebalance();

  EplbStatus Status() const;

 private:
  void ConsiderPlanning(const char* trigger);
  void StartPlanning(const char* trigger);
  void TakePlan();
  void StartMoving(const Placement& plan);
  void StepMoving();
  void Finish();
  void Fail(const std::string& why, bool timed_out);
  Placement Current() const;

  const EplbOptions options_;
  const EplbShape shape_;
  RankComm& comm_;
  const EplbAlgorithm algorithm_;
  const RankTopology topology_;
  const bool leads_;  // rank 0 of the world
  MovableExperts* experts_ = nullptr;
  std::vector<int> layers_;    // with experts
  std::vector<int> index_of_;  // [layers of the model] among those; −1
  std::optional<LoadWindow> window_;
  int64_t passes_ = 0;  // since the last plan, or the end of its moves
  PlanJob plan_;
  ExpertCourier courier_;
  bool sends_ = false;  // experts come from ranks that hold them
  std::unique_ptr<Migration> moving_;
  std::chrono::steady_clock::time_point began_;
  EplbStatus status_;
};

}  // namespace switchyard
