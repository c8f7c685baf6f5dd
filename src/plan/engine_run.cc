#include "plan/engine_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace switchyard::plan {

void EngineRun::Run(std::span<const Arrival> arrivals, size_t first, size_t stride,
                    const std::function<void(const Steps&)>& after) {
  size_t next = first, group = 0;
  while (true) {
    for (; next < arrivals.size() && arrivals[next].seconds <= now_; next += stride)
      groups_[group++ % groups_.size()]->Arrive(next);
    const double coming =
        next < arrivals.size() ? arrivals[next].seconds : std::numeric_limits<double>::infinity();
    if (Plan()) {
      Step(coming, after);
    } else if (next < arrivals.size()) {
      now_ = coming;
    } else {
      return;
    }
  }
}

// The engine's groups exchange whether they decode before they plan, as of the last step.
bool EngineRun::Plan() {
  const int64_t limit = pace_ ? pace_->rows() : std::numeric_limits<int64_t>::max();
  bool any = false, decodes = false;
  int64_t waiting = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    rows_[g] = groups_[g]->Plan(limit, decodes_);
    any |= rows_[g].rows() > 0;
    decodes |= rows_[g].decode > 0;
    waiting += groups_[g]->waiting();
  }
  decodes_ = decodes;
  out_->most_waiting = std::max(out_->most_waiting, waiting);
  return any;
}

void EngineRun::Step(double next_arrival, const std::function<void(const Steps&)>& after) {
  Steps steps = {.start = now_};
  int64_t idle = 0, running = 0;
  int64_t until_end = std::numeric_limits<int64_t>::max();
  for (size_t g = 0; g < groups_.size(); ++g) {
    idle += rows_[g].rows() == 0 ? 1 : 0;
    steps.prompt_rows += rows_[g].prompt;
    steps.decode_rows += rows_[g].decode;
    running += groups_[g]->running();
    until_end = std::min(until_end, groups_[g]->StepsUntilEnd());
  }
  steps.seconds = clock_.Seconds(rows_);
  // Without prompts nothing changes until a request ends or arrives.
  if (steps.prompt_rows == 0) {
    const double until_arrival = std::ceil((next_arrival - now_) / steps.seconds);
    steps.count = std::min(until_end, clock_.EqualSteps(rows_));
    if (until_arrival < static_cast<double>(steps.count))
      steps.count = std::max<int64_t>(1, static_cast<int64_t>(until_arrival));
  }
  const auto count = static_cast<double>(steps.count);
  now_ += count * steps.seconds;
  busy_ += count * steps.seconds;
  request_seconds_ += count * steps.seconds * static_cast<double>(running);
  out_->steps += steps.count;
  out_->uneven += count * static_cast<double>(idle) / static_cast<double>(groups_.size());
  if (pace_) {
    constexpr int64_t kConverged = 8;  // further equal steps do not change the estimates
    for (int64_t i = 0; i < std::min(steps.count, kConverged); ++i)
      pace_->Observe(steps.prompt_rows, steps.decode_rows, steps.seconds);
  }
  if (after) after(steps);
  for (const auto& group : groups_) group->Advance(steps.count, now_);
}

int64_t EngineRun::cached_tokens() const {
  int64_t tokens = 0;
  for (const auto& group : groups_) tokens += group->cached_tokens();
  return tokens;
}

}  // namespace switchyard::plan
