// Options and status of expert-parallel load balancing. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// The flags. Names and meaning follow SGLang's. Only the last two are this project's own.
struct EplbOptions {
  bool enable = false;             // --enable-eplb
  std::string algorithm = "auto";  // --eplb-algorithm (planner.h)
  int64_t num_iterations = 1000;   // --eplb-rebalance-num-iterations: passes between two plans
  // --eplb-rebalance-layers-per-chunk: number of layers that switch before the same pass. Until
  // then, their old and new weights are in memory. −1: all layers.
  int32_t layers_per_chunk = 1;
  double min_utilization = 1.0;     // --eplb-min-rebalancing-utilization-threshold: no plan while
                                    // the mean balancedness exceeds it
  std::string dispatch = "static";  // --ep-dispatch-algorithm (replica_choice.h)
  std::string rank_costs;           // --eplb-rank-costs (ParseRankCosts); empty: ranks are equal
  double watchdog_seconds = 60;     // --eplb-watchdog-timeout: timeout of a plan or a migration
                                    // that makes no progress
};

// Error kInvalid names the flag.
void Validate(const EplbOptions& options);

// Returns the planner that --eplb-algorithm `auto` stands for. It is yard if batches are divided
// over replicas by rank load (dispatch balanced or lp), else deepseek, which assumes that replicas
// get equal parts of their expert's load. It is also yard if ranks have unequal numbers of `places`
// (slots), or are unequal otherwise (`equal_ranks`, RankTopology::EqualRanks), which deepseek
// cannot handle.
std::string PlannerFor(const EplbOptions& options, int places, int ranks, bool equal_ranks = true);

// kIdle: waiting for a trigger. kPlanning: rank 0's thread computes a plan. kAgreed: all ranks have
// the plan. kMoving: weights are being transferred, and layers switch one chunk after the other.
// kStopping: the migration was aborted, and loading threads are finishing. kDone: idle, and the
// last plan was carried out.
enum class EplbState : uint8_t { kIdle, kPlanning, kAgreed, kMoving, kStopping, kDone };
const char* Name(EplbState state);

struct EplbStatus {
  EplbState state = EplbState::kIdle;
  int64_t passes = 0;  // number of passes since the server started
  // Mean of (mean / max rank load) since experts last moved; nullopt if nothing was counted since.
  std::optional<double> balancedness;
  // The following fields describe the current rebalance, or the last one if none is in progress.
  std::string trigger;               // iterations, shape (changed load distribution) or request
  std::optional<double> planned_at;  // balancedness at the time of planning
  int32_t layer = -1;                // layer being migrated; −1: none
  int32_t layers_done = 0, layers_to_move = 0;
  // [kNumFillFrom] number of slots filled from each source (transfers.h).
  std::vector<int64_t> fills;
  int32_t transfer_batches = 0;  // number of batches of pairwise transfers; maximum over layers
  double plan_seconds = 0, move_seconds = 0;
  double longest_switch_seconds = 0;  // longest stall of a pass by a layer switch, on rank 0
                                      // (of the first ranks of all stages)
  int64_t move_passes = 0;
  // Counters since the start of the server.
  int64_t plans = 0, rebalances = 0;  // plans made; migrations completed
  int64_t layers_moved = 0;
  // On rank 0, or on the first ranks of all stages: number loaded from files; number received from
  // other ranks.
  int64_t experts_loaded = 0, experts_received = 0;
  int64_t failures = 0, watchdog_resets = 0;  // failures include watchdog resets
  std::string last_result, last_failure;      // messages
};

// The status of a pipeline stage's layers.
struct EplbStageStatus {
  int32_t layers = 0, moe_layers = 0;  // layers of the stage; 0 MoE layers: `status` has no values
  EplbStatus status;
};

// The status of all stages as one. The state is that of the first stage that is busy. Layers are
// numbered over the model; counts are sums; passes and times are maxima. Balancedness is the mean
// over MoE layers. Messages name their stage.
EplbStatus MergedStatus(const std::vector<EplbStageStatus>& stages);

}  // namespace switchyard
