// A plan that a background thread makes, and its value.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "eplb/replica_choice.h"
#include "eplb/types.h"

namespace switchyard {

// Background threads with lower scheduling priority than the threads of forward passes.

// Lowers the priority of the calling thread permanently. On Linux each thread has its own nice
// value. With the value set here, a thread gets about 1/30 of a core that it shares with a
// forward-pass thread. If setpriority fails, the thread keeps its current priority.
inline void LowerThreadPriority() {
  constexpr int kNice = 15;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

// Compares the gain of a plan with the cost of its migration, to skip layers that are not worth
// moving.

// Number of rows that a rank can compute while it receives the weights of one expert from its own
// node. Memory bandwidth limits both operations: computing these rows reads the weights once.
constexpr double kRowsPerExpert = 64;

// Finds the layers of `*plan` whose moves gain less than they cost, and resets them to their
// placement in `previous`. Returns the number of layers reset. Per layer, over the recorded steps:
//   gain   reduction of the most loaded rank's rows, summed over the steps. For ranks with costs:
//          of the slowest rank's time, in rows of the rank with the highest cost of a row
//   cost   kRowsPerExpert rows per expert received (four times that from other nodes) / ranks, plus
//          two standard deviations of the most loaded rank's count: a gain below this is noise of
//          few tokens and does not last. With RankCost::move, the weights cost the time of the rank
//          that takes longest to receive its experts
// A layer is also reset if its gain is below 1 % of the time of all passes. The time of a pass
// counts as the rows of its most loaded rank, plus kRowsPerExpert for reading the weights of one
// expert. `passes`: number of passes in the history. With dispatch `fake` no layer is reset, since
// its loads do not depend on the placement. Pure. Both placements are valid for `topology` and have
// the history's layers and experts.
int ResetLayersNotWorthMoving(const LoadHistory& history, int64_t passes,
                              EpDispatchAlgorithm dispatch, const RankTopology& topology,
                              const Placement& previous, Placement* plan);

// Runs a planner on a background thread of rank 0 and broadcasts the plan.

// One per rank, used by the rank's thread only. Borrows `world`. Rank 0's destructor waits a few
// seconds for the planner. If the planner is still running then, it is left to run detached.
class PlanJob {
 public:
  // The result shared with all ranks.
  using Planner = std::function<std::vector<int32_t>()>;
  struct Outcome {
    std::vector<int32_t> plan;  // empty on error
    std::string error;          // message, empty on success
    bool timed_out = false;
  };

  explicit PlanJob(Communicator& world) : world_(world) {}
  ~PlanJob();

  // Called by all ranks at the same pass. Only rank 0's `planner` is called, once, by another
  // thread. It must own its data, since it may outlive the job. An exception becomes the error of
  // all ranks.
  void Start(Planner planner);
  // Collective: a broadcast. Returns nullopt while the planner runs, until `timeout` expires. A
  // planner that times out is left running, and no other planner starts before it has finished.
  std::optional<Outcome> Poll(std::chrono::duration<double> timeout);

 private:
  std::string PollPlanner(std::chrono::duration<double> timeout);

  Communicator& world_;
  std::future<std::string> plan_,
      timed_out_plan_;  // on rank 0: plans of the current planner, and of one that timed out
  std::chrono::steady_clock::time_point began_;
};

}  // namespace switchyard
