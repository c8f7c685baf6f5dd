// One engine in a simulation: the queues of its attention groups, which step together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/scheduler/prefill_pace.h"
#include "plan/engine_experts.h"
#include "plan/failures.h"
#include "plan/request_queue.h"

namespace switchyard::plan {

// The clocks of an engine.
class EngineClocks {
 public:
  virtual ~EngineClocks() = default;
  // The clock while all ranks serve, or only `active` of them (their numbers do not matter).
  virtual StepClock& Of(int active) = 0;
};

struct EngineParts {
  int ranks = 1;
  // One for each attention group.
  std::vector<std::unique_ptr<RequestQueue>> groups;
  // Limits of running requests of a group, by active ranks: [ranks + 1], or empty.
  std::vector<int64_t> running;
  // Limits the prompt rows of steps with decode rows, as the engine does; nullopt: no limit.
  std::optional<PrefillPace> pace;
  std::unique_ptr<EngineExperts> experts;  // null: equal loads
  std::vector<RankFailure> failures;       // in order of time; ranks of the engine
  Recovery recovery;
  // Bytes of experts that each active rank has to load before these ranks serve.
  std::function<double(std::span<const int> active)> bytes_to_load;
};

// Requests go to the groups in turn. Decode steps of equal time are advanced together, if clock and
// queues permit that, so the time of a run depends on the number of requests more than on the
// number of steps.
//
// If a rank ends, the step in progress is aborted, and the engine pauses. All open requests then
// continue after their output so far. By default the pause lasts until the rank has loaded again.
// With Recovery::serves_without it lasts until the other ranks have loaded the experts that they
// lack; their groups get the requests of the absent group. When all ranks have loaded, there is one
// more pause. Ranks that end by a fault of a request are not simulated.
class EngineRun {
 public:
  EngineRun(EngineParts parts, EngineClocks& clocks, Simulation* out);

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
  // Null: equal loads.
  const EngineExperts* experts() const { return parts_.experts.get(); }
  const std::vector<Simulation::Pause>& pauses() const { return pauses_; }

 private:
  bool Plan();  // false: no group has rows
  void Step(double next_arrival, const std::function<void(const Steps&)>& after);
  // The next end of a rank, or the time at which the absent ranks have loaded.
  double NextEvent() const;
  void Handle();
  // Begins an epoch with the ranks that are not absent: all open requests continue.
  void BeginEpoch();
  std::vector<int> ActiveRanks() const;

  EngineParts parts_;
  EngineClocks& clocks_;
  StepClock* clock_;
  Simulation* const out_;
  std::vector<int> active_;      // groups
  std::vector<GroupRows> rows_;  // of this step [active groups]
  size_t turn_ = 0;              // of the next arrival
  bool decodes_ = false;         // whether any group decoded in the last step
  double now_ = 0, busy_ = 0, request_seconds_ = 0;
  size_t failed_ = 0;        // failures so far
  std::vector<int> absent_;  // ranks that load
  double loaded_ = 0;        // when they have loaded
  double absent_since_ = 0;  // the end of the last pause
  std::vector<Simulation::Pause> pauses_;
};

}  // namespace switchyard::plan
