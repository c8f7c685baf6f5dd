#include "plan/engine_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/format.h"

namespace switchyard::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

EngineRun::EngineRun(EngineParts parts, EngineClocks& clocks, Simulation* out)
    : parts_(std::move(parts)), clocks_(clocks), clock_(&clocks.Of(parts_.ranks)), out_(out) {
  active_.resize(parts_.groups.size());
  std::iota(active_.begin(), active_.end(), 0);
  rows_.resize(active_.size());
}

void EngineRun::Run(std::span<const Arrival> arrivals, size_t first, size_t stride,
                    const std::function<void(const Steps&)>& after) {
  size_t next = first;
  while (true) {
    for (; next < arrivals.size() && arrivals[next].seconds <= now_; next += stride)
      parts_.groups[active_[turn_++ % active_.size()]]->Arrive(next);
    const double coming = next < arrivals.size() ? arrivals[next].seconds : kNever;
    if (Plan()) {
      Step(coming, after);
    } else if (next < arrivals.size()) {
      now_ = std::min(coming, std::max(now_, NextEvent()));
      if (NextEvent() <= now_) Handle();
    } else {
      break;
    }
  }
  out_->failures.absent_seconds +=
      static_cast<double>(absent_.size()) * std::max(0.0, now_ - absent_since_);
  for (const auto& group : parts_.groups) out_->failures.redone_rows += group->redone_rows();
}

// The engine's groups exchange whether they decode before they plan, as of the last step.
bool EngineRun::Plan() {
  const int64_t limit = parts_.pace ? parts_.pace->rows() : std::numeric_limits<int64_t>::max();
  bool any = false, decodes = false;
  int64_t waiting = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    RequestQueue& group = *parts_.groups[active_[i]];
    rows_[i] = group.Plan(limit, decodes_);
    any |= rows_[i].rows() > 0;
    decodes |= rows_[i].decode > 0;
    waiting += group.waiting();
  }
  decodes_ = decodes;
  out_->most_waiting = std::max(out_->most_waiting, waiting);
  return any;
}

void EngineRun::Step(double next_arrival, const std::function<void(const Steps&)>& after) {
  Steps steps = {.start = now_};
  int64_t idle = 0, running = 0;
  int64_t equal = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < active_.size(); ++i) {
    const RequestQueue& group = *parts_.groups[active_[i]];
    idle += rows_[i].rows() == 0 ? 1 : 0;
    steps.prompt_rows += rows_[i].prompt;
    steps.decode_rows += rows_[i].decode;
    running += group.running();
  }
  EngineExperts* const experts = parts_.experts.get();
  steps.seconds = clock_->Seconds(rows_, experts ? &experts->Shares(now_) : nullptr);
  if (experts) steps.seconds += experts->added_seconds();
  // The number of whole steps until a time, at most `equal`.
  const auto until = [&](double time, bool up) {
    const double count = (time - now_) / steps.seconds;
    const double whole = up ? std::ceil(count) : std::floor(count);
    if (whole < static_cast<double>(equal))
      equal = std::max<int64_t>(up ? 1 : 0, static_cast<int64_t>(whole));
  };
  // Without prompts nothing changes until a request ends or arrives.
  if (steps.prompt_rows == 0 && clock_->EqualSteps(rows_) > 1) {
    equal = clock_->EqualSteps(rows_);
    for (const int group : active_) equal = std::min(equal, parts_.groups[group]->EqualSteps());
    if (experts) {
      equal = std::min(equal, experts->equal_steps());
      until(experts->next_change(), /*up=*/true);
    }
    until(next_arrival, /*up=*/true);
  } else {
    equal = 1;
  }
  until(NextEvent(), /*up=*/false);
  if (equal == 0) {
    out_->failures.aborted_seconds += NextEvent() - now_;
    busy_ += NextEvent() - now_;
    now_ = NextEvent();
    return Handle();
  }
  steps.count = equal;
  const auto count = static_cast<double>(steps.count);
  now_ += count * steps.seconds;
  busy_ += count * steps.seconds;
  request_seconds_ += count * steps.seconds * static_cast<double>(running);
  out_->steps += steps.count;
  out_->uneven += count * static_cast<double>(idle) / static_cast<double>(active_.size());
  if (parts_.pace) {
    constexpr int64_t kConverged = 8;  // further equal steps do not change the estimates
    for (int64_t i = 0; i < std::min(steps.count, kConverged); ++i)
      parts_.pace->Observe(steps.prompt_rows, steps.decode_rows, steps.seconds);
  }
  if (experts)
    experts->EndSteps(steps.count, steps.prompt_rows + steps.decode_rows, steps.seconds, now_);
  if (after) after(steps);
  for (const int group : active_) parts_.groups[group]->Advance(steps.count, now_);
}

double EngineRun::NextEvent() const {
  const double failure =
      failed_ < parts_.failures.size() ? parts_.failures[failed_].seconds : kNever;
  return std::max(now_, std::min(failure, absent_.empty() ? kNever : loaded_));
}

std::vector<int> EngineRun::ActiveRanks() const {
  std::vector<int> all;
  for (int rank = 0; rank < parts_.ranks; ++rank)
    if (std::ranges::find(absent_, rank) == absent_.end()) all.push_back(rank);
  return all;
}

// Ranks that end, or that have loaded, until now. Further ranks may end during the pause.
void EngineRun::Handle() {
  const Recovery& recovery = parts_.recovery;
  const double start = now_;
  double end = now_;
  std::string reason;
  out_->failures.absent_seconds +=
      static_cast<double>(absent_.size()) * std::max(0.0, now_ - absent_since_);
  if (!absent_.empty() && loaded_ <= now_) {
    absent_.clear();
    reason = "all ranks serve again";
    end = now_ + recovery.settle_seconds;
  }
  while (failed_ < parts_.failures.size() && parts_.failures[failed_].seconds <= end) {
    const RankFailure& failure = parts_.failures[failed_++];
    const auto rank = static_cast<int>(failure.rank);
    const double time = std::max(start, failure.seconds);
    ++out_->failures.failures;
    reason = fmt::format("rank {} ended", rank);
    if (std::ranges::find(absent_, rank) == absent_.end()) absent_.push_back(rank);
    loaded_ = std::max(loaded_, time + recovery.load_seconds);
    const std::vector<int> active = ActiveRanks();
    if (recovery.serves_without && !active.empty()) {
      const double load = parts_.bytes_to_load(active) / recovery.load_rate;
      end = std::min(loaded_, std::max(end, time + recovery.settle_seconds + load));
    } else {
      end = std::max(end, loaded_);
    }
  }
  if (end >= loaded_) absent_.clear();
  out_->failures.pause_seconds += end - start;
  out_->failures.longest_pause = std::max(out_->failures.longest_pause, end - start);
  pauses_.push_back({start, end - start, reason});
  now_ = absent_since_ = end;
  BeginEpoch();
}

void EngineRun::BeginEpoch() {
  std::vector<OpenRequest> open;
  for (size_t g = 0; g < parts_.groups.size(); ++g)
    for (OpenRequest request : parts_.groups[g]->TakeAll(parts_.recovery.keeps_cache)) {
      request.group = static_cast<int>(g);
      open.push_back(request);
    }
  std::ranges::sort(open, {}, &OpenRequest::index);
  const std::vector<int> ranks = ActiveRanks();
  const bool whole = absent_.empty();
  if (!whole) {  // each rank is a group
    active_ = ranks;
  } else {
    active_.resize(parts_.groups.size());
    std::iota(active_.begin(), active_.end(), 0);
  }
  rows_.assign(active_.size(), {});
  decodes_ = false;
  for (const int group : active_)
    if (!parts_.running.empty()) parts_.groups[group]->Limit(parts_.running[ranks.size()]);
  for (const OpenRequest& request : open) {
    const bool stays = std::ranges::find(active_, request.group) != active_.end();
    const int group = stays ? request.group : active_[turn_++ % active_.size()];
    parts_.groups[group]->Add(request);
  }
  clock_ = &clocks_.Of(static_cast<int>(ranks.size()));
  if (!parts_.experts) return;
  if (whole) {
    parts_.experts->Restart();
  } else {
    parts_.experts->ServeWith(ranks);
  }
}

int64_t EngineRun::cached_tokens() const {
  int64_t tokens = 0;
  for (const auto& group : parts_.groups) tokens += group->cached_tokens();
  return tokens;
}

}  // namespace switchyard::plan
