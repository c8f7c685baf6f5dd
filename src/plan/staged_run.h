// One engine with pipeline stages in a simulation: several passes are in flight.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "plan/request_queue.h"
#include "plan/simulate.h"
#include "plan/step_clock.h"

namespace switchyard::plan {

// The times of a pass in the stages of an engine, each with the layers of the planner's split. A
// pass of equal rows takes the same time, whatever other passes are in flight: stages have their
// own links. Single-threaded.
class StageClocks {
 public:
  // Borrows `costs`.
  StageClocks(const LayoutCosts& costs, Fidelity fidelity);

  struct Times {
    // Seconds of each stage. If its ranks copy hidden rows themselves, the copies are included.
    std::vector<double> stages;
    double transfer = 0;  // seconds between two stages in which neither of them is busy
    double results = 0;   // from the end of the last stage until the first one has the tokens
  };
  // `groups` [dp]; at least one has rows. The group with the most rows determines the transfer. The
  // result is valid until the next call.
  const Times& Of(std::span<const GroupRows> groups);
  // With Fidelity::kOperation: appends the operations of the next passes to *spans, with the ranks
  // of the engine and the layers of the model. Their times are those since the start of the pass in
  // their stage. Null: does not.
  void Record(std::vector<OperationSpan>* spans);

  int stages() const { return costs_.stages(); }
  int ranks_of_stage() const { return costs_.ranks().mesh.tp; }

 private:
  const LayoutCosts& costs_;
  std::vector<std::unique_ptr<StepClock>> clocks_;  // [stages]
  std::vector<OperationClock*> operations_;         // the same clocks; empty: by step
  std::vector<int> first_layers_;                   // [stages]
  std::vector<OperationSpan>* spans_ = nullptr;
  Times times_;
};

// Requests go to the groups in turn. The first stage plans a pass when it is free, as the engine
// does (RankEngine::Impl::RunStaged): without the sequences whose tokens are in flight, but with
// the next chunk of a prompt. It waits for the results of the oldest pass if the maximum number of
// passes is in flight, or if it has no rows. A stage runs the passes in their order. All groups of
// an engine run the same passes.
class StagedRun {
 public:
  // `passes`: the maximum number in flight; QueueLimits::passes of all groups.
  StagedRun(std::vector<std::unique_ptr<RequestQueue>> groups, StageClocks& clocks, int passes,
            Simulation* out);

  struct Pass {
    struct Span {
      double start = 0, seconds = 0;
    };
    std::vector<Span> stages;
    int64_t prompt_rows = 0, decode_rows = 0;
  };
  // Runs the arrivals first, first + stride, … of `arrivals`, and adds to the Simulation. Calls
  // `after`, if it is not null, after each pass has been planned.
  void Run(std::span<const Arrival> arrivals, size_t first, size_t stride,
           const std::function<void(const Pass&)>& after);

  double now() const { return now_; }
  // Seconds in which each stage runs passes.
  const std::vector<double>& busy() const { return busy_; }
  int64_t cached_tokens() const;
  // Running requests, summed over the seconds in which passes are in flight.
  double request_seconds() const { return request_seconds_; }

 private:
  bool Plan();  // false: no group has rows
  void Start(const std::function<void(const Pass&)>& after);
  int64_t running() const;

  const std::vector<std::unique_ptr<RequestQueue>> groups_;
  StageClocks& clocks_;
  const size_t passes_;
  Simulation* const out_;
  std::vector<GroupRows> rows_;   // of the planned pass [groups]
  std::deque<double> in_flight_;  // when the first stage gets the results of each pass
  std::vector<double> free_;      // when each stage has ended its last pass
  std::vector<double> busy_;
  Pass pass_;
  size_t turn_ = 0;  // of the next arrival
  double now_ = 0;   // of the first stage
  double request_seconds_ = 0;
};

}  // namespace switchyard::plan
