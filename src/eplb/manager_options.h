// What re-balancing is started with, and what it tells. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// The flags; names and meaning follow SGLang's, but for the last one, which is ours.
struct EplbOptions {
  bool enable = false;              // --enable-eplb
  std::string algorithm = "auto";   // --eplb-algorithm (planner.h)
  int64_t num_iterations = 1000;    // --eplb-rebalance-num-iterations: passes between two plans
  int32_t layers_per_chunk = 1;     // --eplb-rebalance-layers-per-chunk: layers whose weights are
                                    // held twice, and that switch at one step; −1: all
  double min_utilization = 1.0;     // --eplb-min-rebalancing-utilization-threshold: nothing is
                                    // planned where the mean balancedness is over it
  std::string dispatch = "static";  // --ep-dispatch-algorithm (replica_choice.h)
  double watchdog_seconds = 60;     // --eplb-watchdog-timeout: how long a plan or a move may make
                                    // no progress before it is given up
};

// Error kInvalid names the flag.
void Validate(const EplbOptions& options);

// --eplb-algorithm, or what `auto` stands for: yard where batches are divided over replicas as it
// suits the ranks (balanced, lp), else deepseek, which counts on replicas that get even parts of
// their expert's load; yard too where ranks do not have as many `places` each, which deepseek
// cannot do.
std::string PlannerFor(const EplbOptions& options, int places, int ranks);

// Idle until something asks for a plan; planning on rank 0's thread; agreed: all ranks have the
// plan; moving: weights are on their way, and layers switch one chunk after the other; stopping: it
// has been given up, and the threads that load are about to end; done: idle again, after a plan
// that was carried out.
enum class EplbState : uint8_t { kIdle, kPlanning, kAgreed, kMoving, kStopping, kDone };
const char* Name(EplbState state);

struct EplbStatus {
  EplbState state = EplbState::kIdle;
  int64_t passes = 0;  // since the server started
  // Mean of mean / max rank load since experts last moved; nothing where nothing was counted since.
  std::optional<double> balancedness;
  // Of the rebalance under way, or of the last one.
  std::string trigger;               // iterations, shape (of the load has changed) or request
  std::optional<double> planned_at;  // balancedness that it was planned at
  int32_t layer = -1;                // whose experts are on their way; −1: none
  int32_t layers_done = 0, layers_to_move = 0;
  std::vector<int64_t> fills;  // [kNumFillFrom] places by where they are filled from (transfers.h)
  int32_t transfer_batches = 0;  // the longest layer's, of pairs of ranks
  double plan_seconds = 0, move_seconds = 0;
  double longest_switch_seconds = 0;  // that a pass of rank 0 has waited for layers to switch
  int64_t move_passes = 0;
  // Since the server started.
  int64_t plans = 0, rebalances = 0;  // made; and those that moved something, to the end
  int64_t layers_moved = 0;
  int64_t experts_loaded = 0, experts_received = 0;  // by rank 0: from checkpoint and other ranks
  int64_t failures = 0, watchdog_resets = 0;         // the latter are failures too
  std::string last_result, last_failure;             // in words
};

}  // namespace switchyard
