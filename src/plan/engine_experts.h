// The experts of one engine in a simulation: their loads, placement and rebalances.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "eplb/load_window.h"
#include "eplb/manager_options.h"
#include "eplb/planner.h"
#include "eplb/rebalance_trigger.h"
#include "eplb/replica_choice.h"
#include "plan/expert_loads.h"
#include "plan/expert_shares.h"
#include "plan/search.h"

namespace switchyard::plan {

// A plan of the EPLB planner in a simulation, and its migration.
struct Rebalance {
  double start = 0, end = 0;  // seconds of the simulation; end 0: in progress at the end
  std::string trigger;        // as RebalanceTrigger::Due
  int layers = 0;             // layers that changed
  // Mean over layers of (mean / most loaded rank), with the placement before and after.
  double before = 0, after = 0;
  int64_t same_node = 0, other_node = 0;  // experts received
  double bytes = 0;                       // of these experts
  double added_seconds = 0;               // by which the migration made steps longer
};

// Figures of the expert loads of one engine.
struct ExpertFigures {
  // [MoE layers] rows of the most loaded rank divided by the mean, averaged over the time of steps.
  std::vector<double> imbalance;
  double balancedness = 0;  // mean over layers of (mean / most loaded rank), averaged likewise
  double seconds = 0;       // of the steps
  std::vector<Rebalance> rebalances;
  // Balancedness since a time, for a picture; at most kKept.
  static constexpr size_t kKept = 20'000;
  std::vector<std::pair<double, float>> changes;
};

// Bytes of an expert on one rank of the layout.
double ExpertBytesOf(const Question& question, const Evaluation& layout);

// Serves one engine, in order of its steps. Loads are expected values: a rank's rows are those of
// its experts' popularity, divided over replicas as --ep-dispatch-algorithm does. The clocks add
// random variation (ExpertShares::Variation).
//
// With --enable-eplb, counts are recorded in the engine's LoadWindow, RebalanceTrigger decides when
// to plan, and the engine's planner plans. A plan is carried out as `eplb/migration.h` does: chunk
// by chunk, with a limit of bytes per pass. Experts come over the links from a rank that holds
// them, and steps wait for these transfers, and for the copies of a switch. Planning takes no time:
// the engine plans on a thread of its own.
class EngineExperts {
 public:
  // `costs`: of the layout; not kept.
  EngineExperts(std::shared_ptr<const ExpertLoads> loads, const Question& question,
                const Evaluation& layout, const LayoutCosts& costs);
  EngineExperts(const EngineExperts&) = delete;

  // The shares of the step that begins at `now`.
  const ExpertShares& Shares(double now);
  // The time that a migration adds to this step, and for how many steps it and the shares stay.
  double added_seconds() const { return added_; }
  int64_t equal_steps() const;
  double next_change() const { return popularity_.next_change(); }
  // `steps` equal steps of `tokens` tokens in the engine have ended at `now`; each took `seconds`.
  void EndSteps(int64_t steps, int64_t tokens, double seconds, double now);

  // All ranks serve, with the last placement of all ranks. A migration in progress ends; layers
  // that have not switched stay as they are.
  void Restart();
  // Likewise while only the ranks `active` serve: the engine's placement is PlacementsOfActive of
  // the last placement of all ranks.
  // Experts do not move if one rank is left, or if the planner cannot place them on so few ranks.
  void ServeWith(std::span<const int> active);

  ExpertFigures figures() const;

 private:
  // Layers that switch together.
  struct Chunk {
    std::vector<int> layers;
    int64_t passes = 0;         // in which experts are loaded
    double piece_seconds = 0;   // by which each of them is longer
    double switch_seconds = 0;  // by which the step after them is longer
  };

  // Loads with one popularity and placement.
  struct State {
    ExpertShares shares;
    std::vector<int32_t> of_experts, of_slots;  // [MoE layers, …] rows of kTokens tokens
    double balancedness = 1;
  };
  static constexpr int32_t kTokens = 1 << 16;
  static constexpr size_t kKeptStates = 256;

  void KeepPlacement();  // of the epoch that ends, if all ranks serve in it
  void Use(Placement placement, const RankTopology& topology);
  // Discards the migration in progress and the loads so far. `enable`: whether experts may move.
  void BeginEplb(bool enable);
  EplbAlgorithm Planner() const;  // for the present placement
  bool CanPlan() const;           // as CanBalance of the engine's active_layout.cc
  void ResetDividers(std::span<const int> layers);
  State Compute();
  void Count();
  void Plan(const RebalanceTrigger::Due& due, double now);
  Chunk ChunkOf(std::span<const int> layers) const;
  void Migrate(int64_t steps, double now);

  const std::shared_ptr<const ExpertLoads> loads_;
  const size_t all_layers_;      // of the model
  std::vector<int> moe_layers_;  // index in the model
  const RankTopology whole_;     // of all ranks
  const int physical_;           // experts on all ranks, while all of them serve
  const EplbOptions eplb_;
  const EpDispatchAlgorithm dispatch_;
  const double expert_bytes_;  // on one rank
  // Bytes per second of a rank from its own host and from other ones; seconds in which ranks agree
  // on the progress before a pass, and to copy an expert to its slot.
  double near_rate_ = 1, far_rate_ = 1, agree_ = 0, copy_ = 0;

  ExpertPopularity popularity_;
  Placement kept_;  // the last one of all ranks, for the next epoch
  RankTopology topology_;
  Placement placement_;
  ExpertLocation location_;
  std::vector<BatchDivider> dividers_;  // [MoE layers]
  int64_t placements_ = 0;              // number of changes
  // By version of the popularity, for the present placement. Only recordings have old versions.
  std::map<int64_t, State> states_;
  const State* state_ = nullptr;

  int64_t step_ = 0;
  double added_ = 0;
  std::unique_ptr<RankComm> alone_;  // a world of one rank, for window_
  std::optional<LoadWindow> window_;
  std::optional<RebalanceTrigger> trigger_;
  int64_t passes_ = 0;         // of the window's step in progress
  int64_t uncounted_ = 0;      // tokens that are not in the window yet
  Placement next_;             // of the plan in progress
  std::vector<Chunk> chunks_;  // that have not switched; the first one is in progress
  bool moved_ = false;         // Rebalance::after of the last rebalance is missing
  ExpertFigures figures_;      // imbalance and balancedness: sums over seconds
};

}  // namespace switchyard::plan
