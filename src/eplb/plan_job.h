// Runs a planner on a background thread of rank 0 and broadcasts the plan.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/communicator.h"

namespace switchyard {

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
  // Collective: a broadcast. Returns nullopt while the planner runs, until `patience` expires. A
  // planner that times out is left running, and no other planner starts before it has finished.
  std::optional<Outcome> Poll(std::chrono::duration<double> patience);

 private:
  std::string PollPlanner(std::chrono::duration<double> patience);

  Communicator& world_;
  std::future<std::string> plan_,
      timed_out_plan_;  // on rank 0: plans of the current planner, and of one that timed out
  std::chrono::steady_clock::time_point began_;
};

}  // namespace switchyard
