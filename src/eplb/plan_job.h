// A plan that rank 0 makes on a thread of its own, and how the other ranks get it.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/communicator.h"

namespace switchyard {

// One per rank; the rank's thread. Borrows `world`. The end of rank 0's waits a few seconds for its
// planner, then leaves it behind.
class PlanJob {
 public:
  // What all ranks are to know.
  using Planner = std::function<std::vector<int32_t>()>;
  struct Outcome {
    std::vector<int32_t> plan;  // empty where there is none
    std::string error;          // why
    bool timed_out = false;
  };

  explicit PlanJob(Communicator& world) : world_(world) {}
  ~PlanJob();

  // All ranks at the same pass; only rank 0's `planner` is called, once, by another thread. It has
  // to own what it uses, which it may outlive. What it throws becomes the error of all ranks.
  void Start(Planner planner);
  // Collective, a broadcast. Nothing while it is being made, unless for longer than `patience`: a
  // planner that does not end is left to itself, and no other one is started before it has ended.
  std::optional<Outcome> Poll(std::chrono::duration<double> patience);

 private:
  std::string News(std::chrono::duration<double> patience);

  Communicator& world_;
  std::future<std::string> plan_, left_;  // rank 0; `left_`: one that was given up
  std::chrono::steady_clock::time_point began_;
};

}  // namespace switchyard
