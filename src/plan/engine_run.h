// One engine in a simulation: the queues of its attention groups, which step together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/scheduler/prefill_pace.h"
#include "plan/request_queue.h"

namespace switchyard::plan {

// Requests go to the groups in turn. Decode steps of equal time are advanced together, if clock and
// queues permit that, so the time of a run depends on the number of requests more than on the
// number of steps.
class EngineRun {
 public:
  // `pace`: limits the prompt rows of steps with decode rows, as the engine does; nullopt: no
  // limit.
  EngineRun(std::vector<std::unique_ptr<RequestQueue>> groups, std::optional<PrefillPace> pace,
            StepClock& clock, Simulation* out)
      : groups_(std::move(groups)), pace_(pace), clock_(clock), out_(out), rows_(groups_.size()) {}

  // `count` equal steps.
  struct Steps {
    double start = 0, seconds = 0;  // of the first; of each
    int64_t count = 1, prompt_rows = 0, decode_rows = 0;
  };
  // Runs the arrivals first, first + stride, … of `arrivals`, and adds to the Simulation. Calls
  // `after`, if it is not null, after every step or several equal ones.
  void Run(std::span<const Arrival> arrivals, size_t first, size_t stride,
           const std::function<void(const Steps&)>& after);

  double now() const { return now_; }
  double busy() const { return busy_; }
  int64_t cached_tokens() const;
  // Running requests, summed over the seconds of all steps.
  double request_seconds() const { return request_seconds_; }

 private:
  bool Plan();  // false: no group has rows
  void Step(double next_arrival, const std::function<void(const Steps&)>& after);

  const std::vector<std::unique_ptr<RequestQueue>> groups_;
  std::optional<PrefillPace> pace_;
  StepClock& clock_;
  Simulation* const out_;
  std::vector<GroupRows> rows_;  // of this step
  bool decodes_ = false;         // whether any group decoded in the last step
  double now_ = 0, busy_ = 0, request_seconds_ = 0;
};

}  // namespace switchyard::plan
