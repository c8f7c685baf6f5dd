// The planned changes of Supervisor: restarts of ranks, and changes of the layout.
#include "server/ranks/planned_change.h"

#include <chrono>
#include <numeric>
#include <utility>

#include "core/format.h"
#include "core/log.h"
#include "server/ranks/supervisor.h"

namespace switchyard {
namespace {

using SteadyClock = std::chrono::steady_clock;

const std::vector<std::vector<int>> kNoRounds;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

}  // namespace

bool Supervisor::Begin(PlannedChange change, OnChanged done) {
  const std::lock_guard lock(mutex_);
  if (!runs_ || stopping_ || draining_ || pending_) return false;
  pending_.emplace(Pending{std::move(change), std::move(done)});
  changed_.notify_all();
  return true;
}

void Supervisor::CancelChange() {
  const std::lock_guard lock(mutex_);
  draining_ = interrupted_ = true;
  changed_.notify_all();
}

bool Supervisor::Draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void Supervisor::EndChange(const ChangeOutcome& outcome) {
  // Destroyed after the lock is released, because the layout's processes may take long to end.
  std::optional<Pending> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(pending_);
  }
  if (ended) ended->done(outcome);
}

// Makes the pending change. Only this thread removes pending_, so the reference below stays valid.
bool Supervisor::Change() {
  const PlannedChange& change = pending_->change;
  const auto start = SteadyClock::now();
  LOG_INFO("{} begins", change.what);
  ChangeOutcome outcome;
  bool serving = true;
  if (change.memory.any()) {
    serving = change.resumes ? ResumeMemory(change, &outcome) : ReleaseMemory(change, &outcome);
  } else if (change.layout) {
    serving = SwitchLayout(change, &outcome);
  }
  const auto& restarts = change.memory.any() ? kNoRounds : change.rounds;
  for (const std::vector<int>& ranks : restarts) {
    if (!outcome.pauses.empty()) WaitForOutput();
    // A rank that ended between two rounds may be absent. The next round could then restart the
    // last rank that serves.
    while (std::optional<RanksEnd> end = serving ? TakeEnd() : std::nullopt)
      serving = Restart(*std::move(end)) && AwaitAbsent(&outcome);
    if (!serving || stopping_) break;
    if (Draining()) {
      outcome.error = kShuttingDown;
      outcome.kind = ErrorKind::kUnavailable;
      break;
    }
    serving = RestartSome(ranks, fmt::format("planned restart of rank {}", Joined(ranks, ", ")),
                          &outcome) &&
              AwaitAbsent(&outcome);
  }
  if (!serving || stopping_) return serving && !stopping_;  // Supervisor::Run then ends the change
  outcome.waiting = front_.open();
  front_.EndHold();
  WaitForDiscarded();
  outcome.seconds = SecondsSince(start);
  outcome.released = released_;
  if (outcome.error.empty()) {
    LOG_INFO("{} is done after {:.0f} ms, of which {:.0f} ms without ranks", change.what,
             outcome.seconds * 1000,
             1000 * std::accumulate(outcome.pauses.begin(), outcome.pauses.end(), 0.0));
  } else {
    LOG_WARNING("{} has failed: {}", change.what, outcome.error);
  }
  EndChange(outcome);
  return true;
}

// Waits until discarded ranks have ended, because the next change needs their memory. Stops waiting
// after kMost, or if a present rank ends.
void Supervisor::WaitForDiscarded() {
  constexpr std::chrono::seconds kMost{10};
  constexpr std::chrono::milliseconds kPoll{5};
  const auto give_up = SteadyClock::now() + kMost;
  for (const std::future<void>& ended : discards_) {
    while (ended.wait_for(kPoll) != std::future_status::ready) {
      const std::lock_guard lock(mutex_);
      if (stopping_ || draining_ || ends_.contains(present_) || SteadyClock::now() >= give_up)
        return;
    }
  }
}

// Waits until the ranks have sent an output, so that streams make progress between two restarts.
void Supervisor::WaitForOutput() {
  constexpr std::chrono::seconds kMost{10};
  constexpr std::chrono::milliseconds kPoll{5};
  const auto give_up = SteadyClock::now() + kMost;
  while (!front_.Progressed() && SteadyClock::now() < give_up) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kPoll,
                          [this] { return stopping_ || draining_ || ends_.contains(present_); }))
      return;
  }
}

// The reader of the ranks delivers messages to the front until Close. So the front is paused only
// after Close.
bool Supervisor::RestartSome(const std::vector<int>& ranks, const std::string& why,
                             ChangeOutcome* outcome) {
  const auto start = SteadyClock::now();
  RanksEnd end{.why = why, .time = start};
  bool killed = false;  // a signal killed another rank during the restart
  try {
    ranks_->Retire(ranks, why);
    killed = Reap(&end).by_signal;
  } catch (const Error& error) {
    on_lost_(error.what());
    return false;
  }
  ranks_->Close();
  if (end.by_itself() || killed) {
    end.why = end.by_itself()
                  ? fmt::format("rank {} failed during the {}", Joined(end.failed, ", "), why)
                  : fmt::format("another rank was killed during the {}", why);
    if (!StartUntilServing(std::move(end), /*may_be_absent=*/true)) return false;
  } else {
    front_.PauseForChange(start, layout_->groups(), /*caches_stay=*/true);
    // Without `ranks` this is the return of absent ranks, which have loaded.
    if (!StartUntilServing(std::nullopt, /*may_be_absent=*/!ranks.empty())) return false;
  }
  outcome->pauses.push_back(SecondsSince(start));
  return true;
}

// Begins an epoch with all ranks, after the absent ones have loaded.
bool Supervisor::Rejoin(ChangeOutcome* outcome) {
  const std::string ranks = Joined(absent_, ", ");
  LOG_INFO("rank {} has loaded; the others have served without it for {:.1f} s", ranks,
           SecondsSince(absent_since_));
  return RestartSome({}, fmt::format("return of rank {}", ranks), outcome);
}

// Waits until no rank is absent. A load that hangs ends this wait too: RankProcesses kills the
// rank. Returns early, with an error in `outcome`, if the server drains.
bool Supervisor::AwaitAbsent(ChangeOutcome* outcome) {
  constexpr std::chrono::milliseconds kPoll{5};
  while (!absent_.empty()) {
    {
      std::unique_lock lock(mutex_);
      LogAbsent();
      changed_.wait_for(lock, kPoll);
      if (stopping_) return false;
      if (draining_) {  // Run begins the epoch with all ranks
        outcome->error = kShuttingDown;
        outcome->kind = ErrorKind::kUnavailable;
        return true;
      }
    }
    if (std::optional<RanksEnd> end = TakeEnd()) {
      if (!Restart(*std::move(end))) return false;
    } else if (ranks_->AbsentHaveLoaded() && !Rejoin(outcome)) {
      return false;
    }
  }
  return true;
}

// Says every kLogAbsentTime which ranks the others serve without.
void Supervisor::LogAbsent() {
  if (SteadyClock::now() < log_absent_at_) return;
  log_absent_at_ = SteadyClock::now() + kLogAbsentTime;
  LOG_INFO("the others have served for {:.0f} s without rank {}, which loads",
           SecondsSince(absent_since_), Joined(absent_, ", "));
}

// Loads the new ranks while the present ranks serve. Returns null, with the reason in `outcome`, if
// the new ranks fail to load or a present rank ends before they have loaded.
std::unique_ptr<EngineRanks> Supervisor::LoadBeside(const PlannedChange& change, uint64_t* number,
                                                    ChangeOutcome* outcome) {
  const auto start = SteadyClock::now();
  {
    const std::lock_guard lock(mutex_);
    interrupted_ = stopping_ || draining_ || ends_.contains(present_);
  }
  // Sets beside_ during this wait only. The ranks keep the same `give_up`, which reads beside_, in
  // all their epochs.
  struct Beside {
    explicit Beside(std::atomic<bool>& flag) : flag(flag) { flag = true; }
    ~Beside() { flag = false; }
    std::atomic<bool>& flag;
  } const beside(beside_);
  std::unique_ptr<EngineRanks> ranks;
  try {
    ranks = Start(*change.layout, number);
    if (ranks && ranks->WaitReady([](const LoadProgress&) {}, interrupted_)) {
      LOG_INFO("{}: the new ranks have loaded beside the present ones after {:.0f} ms", change.what,
               SecondsSince(start) * 1000);
      return ranks;
    }
    outcome->error =
        Draining() ? kShuttingDown : "a rank ended while the new ranks loaded: try again";
    outcome->kind = ErrorKind::kUnavailable;
  } catch (const std::exception& error) {
    outcome->error = fmt::format("the new ranks do not load: {}", error.what());
  }
  DiscardNew(std::move(ranks), *number, change.layout);
  return nullptr;
}

// Discards ranks that never served. `ranks` may be null.
void Supervisor::DiscardNew(std::unique_ptr<EngineRanks> ranks, uint64_t number,
                            std::shared_ptr<RankLayout> layout) {
  if (ranks) ranks->Close();
  {
    const std::lock_guard lock(mutex_);
    ends_.erase(number);
  }
  Discard(std::move(ranks), std::move(layout));
}

bool Supervisor::SwitchLayout(const PlannedChange& change, ChangeOutcome* outcome) {
  if (RanksLackCache()) EndForRelease(SteadyClock::now());
  if (!ranks_) {  // ResumeMemory starts the layout
    {
      const std::lock_guard lock(mutex_);
      layout_ = change.layout;
    }
    if (change.on_switched) change.on_switched();
    return true;
  }
  std::unique_ptr<EngineRanks> loaded;
  uint64_t number = 0;
  if (change.beside) {
    loaded = LoadBeside(change, &number, outcome);
    if (!loaded) return true;
  }
  const bool serving = !change.drains || DrainRequests(change, outcome);
  if (!serving || !outcome->error.empty()) {
    if (loaded) DiscardNew(std::move(loaded), number, change.layout);
    return serving;
  }
  return SwitchTo(change, std::move(loaded), number, outcome);
}

// Replaces the present ranks by those of the new layout. `loaded`: these ranks, with the number of
// their start, if they have loaded beside the present ones.
bool Supervisor::SwitchTo(const PlannedChange& change, std::unique_ptr<EngineRanks> loaded,
                          uint64_t number, ChangeOutcome* outcome) {
  const auto start = SteadyClock::now();
  const std::shared_ptr<RankLayout> old = layout_;
  std::unique_ptr<EngineRanks> last = Detach();
  front_.PauseForChange(start, change.layout->groups());
  if (!loaded) {
    last.reset();
    old->Release();
  }
  {
    const std::lock_guard lock(mutex_);
    layout_ = change.layout;
    if (loaded) present_ = number;
    ranks_ = std::move(loaded);
  }
  if (change.beside) {
    if (change.on_switched) change.on_switched();
    ResumeFront();
    outcome->pauses.push_back(SecondsSince(start));
    Discard(std::move(last), old);
    return true;
  }
  try {
    const std::optional<RanksEnd> end = StartAgain();
    if (stopping_) {
      Drop();  // ends ranks that may still load
      return false;
    }
    if (!end) {
      if (change.on_switched) change.on_switched();
      ResumeFront();
      outcome->pauses.push_back(SecondsSince(start));
      return true;
    }
    outcome->error = fmt::format("the new ranks do not load: {}", end->why);
  } catch (const std::exception& error) {
    outcome->error = fmt::format("the new ranks do not load: {}", error.what());
  }
  LOG_WARNING("{}: {}; the last layout starts again", change.what, outcome->error);
  Drop();
  layout_->Release();
  {
    const std::lock_guard lock(mutex_);
    layout_ = old;
  }
  front_.PauseForChange(start, old->groups());
  return StartUntilServing(std::nullopt, /*may_be_absent=*/false);
}

}  // namespace switchyard
