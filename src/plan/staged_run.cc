#include "plan/staged_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace switchyard::plan {

StageClocks::StageClocks(const LayoutCosts& costs, Fidelity fidelity) : costs_(costs) {
  int layer = 0;
  for (int stage = 0; stage < costs.stages(); ++stage) {
    if (fidelity == Fidelity::kOperation) {
      auto clock = std::make_unique<OperationClock>(costs, stage);
      operations_.push_back(clock.get());
      clocks_.push_back(std::move(clock));
    } else {
      clocks_.push_back(std::make_unique<ShapeClock>(costs, stage));
    }
    first_layers_.push_back(layer);
    layer += static_cast<int>(costs.steps(/*decode=*/false, stage).model().num_layers());
  }
  times_.stages.resize(clocks_.size());
}

const StageClocks::Times& StageClocks::Of(std::span<const GroupRows> groups) {
  const GroupRows& most = *std::ranges::max_element(groups, {}, &GroupRows::rows);
  const double send = costs_.SendSeconds(static_cast<double>(most.rows()));
  const bool copies = costs_.copies_rows();
  times_.transfer = copies ? 0 : send;
  times_.results = costs_.result_seconds();
  for (int stage = 0; stage < stages(); ++stage) {
    const bool receives = copies && stage > 0, sends = copies && stage + 1 < stages();
    const size_t known = spans_ ? spans_->size() : 0;
    double& seconds = times_.stages[stage];
    seconds = clocks_[stage]->Seconds(groups);
    for (size_t i = known; spans_ && i < spans_->size(); ++i) {
      OperationSpan& span = (*spans_)[i];
      span.rank += stage * ranks_of_stage();
      if (span.operation.kind == schedule::Kind::kForward)
        span.operation.layer += first_layers_[stage];
      if (receives) span.start += send;
    }
    seconds += ((receives ? 1 : 0) + (sends ? 1 : 0)) * send;
  }
  return times_;
}

void StageClocks::Record(std::vector<OperationSpan>* spans) {
  spans_ = operations_.empty() ? nullptr : spans;
  for (OperationClock* clock : operations_) clock->Record(spans_);
}

StagedRun::StagedRun(std::vector<std::unique_ptr<RequestQueue>> groups, StageClocks& clocks,
                     int passes, Simulation* out)
    : groups_(std::move(groups)),
      clocks_(clocks),
      passes_(static_cast<size_t>(passes)),
      out_(out),
      rows_(groups_.size()),
      free_(static_cast<size_t>(clocks.stages()), 0.0),
      busy_(free_.size(), 0.0) {
  CHECK(passes >= clocks.stages());
  pass_.stages.resize(free_.size());
}

void StagedRun::Run(std::span<const Arrival> arrivals, size_t first, size_t stride,
                    const std::function<void(const Pass&)>& after) {
  size_t next = first;
  while (true) {
    for (; next < arrivals.size() && arrivals[next].seconds <= now_; next += stride)
      groups_[turn_++ % groups_.size()]->Arrive(next);
    const double begin = now_;
    const bool runs = Plan();
    if (runs) Start(after);
    if (!in_flight_.empty() && (!runs || in_flight_.size() >= passes_)) {
      // As the engine, which receives messages only before it plans: arrivals wait meanwhile.
      now_ = std::max(now_, in_flight_.front());
      in_flight_.pop_front();
      request_seconds_ += (now_ - begin) * static_cast<double>(running());
      for (const auto& group : groups_) group->End(now_);
    } else if (runs) {
      request_seconds_ += (now_ - begin) * static_cast<double>(running());
    } else if (next < arrivals.size()) {
      now_ = arrivals[next].seconds;
    } else {
      break;
    }
  }
}

bool StagedRun::Plan() {
  bool any = false;
  int64_t waiting = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    // With stages, the engine has no limit of prompt rows beside decode rows.
    rows_[i] = groups_[i]->Plan(std::numeric_limits<int64_t>::max(), /*others_decode=*/false);
    any |= rows_[i].rows() > 0;
    waiting += groups_[i]->waiting();
  }
  out_->most_waiting = std::max(out_->most_waiting, waiting);
  return any;
}

// The planned pass goes through all stages. A stage begins it when the rows of the stage before
// have arrived and its own last pass has ended, so later passes do not change these times.
void StagedRun::Start(const std::function<void(const Pass&)>& after) {
  const StageClocks::Times& times = clocks_.Of(rows_);
  double arrived = now_;
  for (size_t stage = 0; stage < free_.size(); ++stage) {
    const double start = std::max(arrived, free_[stage]), seconds = times.stages[stage];
    pass_.stages[stage] = {.start = start, .seconds = seconds};
    free_[stage] = start + seconds;
    busy_[stage] += seconds;
    arrived = free_[stage] + times.transfer;
  }
  now_ = free_.front();
  in_flight_.push_back(free_.back() + times.results);
  out_->most_in_flight = std::max(out_->most_in_flight, std::ssize(in_flight_));
  int64_t idle = 0;
  pass_.prompt_rows = pass_.decode_rows = 0;
  for (const GroupRows& rows : rows_) {
    idle += rows.rows() == 0 ? 1 : 0;
    pass_.prompt_rows += rows.prompt;
    pass_.decode_rows += rows.decode;
  }
  ++out_->steps;
  out_->uneven += static_cast<double>(idle) / static_cast<double>(groups_.size());
  for (const auto& group : groups_) group->Begin();
  if (after) after(pass_);
}

int64_t StagedRun::running() const {
  int64_t running = 0;
  for (const auto& group : groups_) running += group->running();
  return running;
}

int64_t StagedRun::cached_tokens() const {
  int64_t tokens = 0;
  for (const auto& group : groups_) tokens += group->cached_tokens();
  return tokens;
}

}  // namespace switchyard::plan
