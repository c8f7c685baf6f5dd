// The planned changes of Supervisor that release the memory of the ranks and give it back.
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "server/ranks/supervisor.h"

namespace switchyard {
namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

// While memory is released, requests wait in the front. `absent_` describes the present epoch in
// this case too, because Run waits for these ranks.
void Supervisor::ResumeFront() {
  const bool had_absent = !absent_.empty();
  absent_ = ranks_ ? ranks_->Absent() : std::vector<int>();
  if (!had_absent && !absent_.empty()) {
    absent_since_ = SteadyClock::now();
    log_absent_at_ = absent_since_ + kLogAbsentTime;
  }
  if (released_.any()) return;
  front_.SetAbsentGroups(absent_);  // each rank is an attention group
  front_.Resume();
}

// Waits until the requests that are open now have ended. On return, requests that have arrived
// meanwhile are held back. Restarts the ranks if they end while they finish requests.
bool Supervisor::DrainRequests(const PlannedChange& change, ChangeOutcome* outcome) {
  constexpr std::chrono::milliseconds kPoll{5};
  if (released_.any()) return true;  // the requests wait already
  front_.HoldNew();
  if (change.aborts) front_.AbortAll();
  while (!front_.Drained() && !front_.controls().paused) {  // paused requests do not end
    if (std::optional<RanksEnd> end = TakeEnd()) {
      if (!Restart(*std::move(end))) return false;
      continue;
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPoll,
                      [this] { return stopping_ || draining_ || ends_.contains(present_); });
    if (!stopping_ && !draining_) continue;
    outcome->error = kShuttingDown;
    outcome->kind = ErrorKind::kUnavailable;
    return true;
  }
  return true;
}

// Ends the ranks, and with them all of their memory. While memory is released, none start.
void Supervisor::EndForRelease(SteadyClock::time_point start) {
  std::unique_ptr<EngineRanks> last = Detach();
  absent_.clear();
  front_.PauseForChange(start, layout_->groups());
  last.reset();
  layout_->Release();
}

bool Supervisor::ReleaseMemory(const PlannedChange& change, ChangeOutcome* outcome) {
  const MemoryTags tags = change.memory;
  if (!DrainRequests(change, outcome)) return false;
  // If a rank ended meanwhile, the others may serve without it.
  if (outcome->error.empty() && !AwaitAbsent(outcome)) return false;
  if (!outcome->error.empty()) return true;
  const auto start = SteadyClock::now();
  if (tags.weights) {
    if (ranks_) EndForRelease(start);
    released_.weights = true;
  } else if (tags.kv_cache && !released_.any() && options_.ranks_free_cache) {
    if (!ReleaseCache(change, outcome)) return false;
    if (!outcome->error.empty()) return true;
  } else if (tags.kv_cache && !released_.any()) {
    released_.kv_cache = true;  // first, so that the front stays paused
    const std::string why = change.what;
    RanksEnd end{.why = why, .time = start};
    try {
      ranks_->Retire(change.rounds.front(), why);
      Reap(&end);
    } catch (const Error& error) {
      on_lost_(error.what());
      return false;
    }
    ranks_->Close();
    front_.PauseForChange(start, layout_->groups());
    // Frees the pages of the shared cache. The next epoch does not touch them before a request.
    ranks_->ClearKept();
    return StartUntilServing(std::nullopt, /*may_be_absent=*/false);
  }
  released_.kv_cache = released_.kv_cache || tags.kv_cache;
  return true;
}

// Sends ChangeCache to the ranks. Returns their error, empty on success; nullopt if the ranks have
// ended, or if the server stops.
std::optional<std::string> Supervisor::ChangeCacheOfRanks(bool release) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = ++cache_changes_;
  ranks_->Send({ChangeCache{.ticket = ticket, .release = release}});
  const auto changed = [&] { return cache_changed_ && cache_changed_->ticket == ticket; };
  changed_.wait(lock, [&] { return stopping_ || ends_.contains(present_) || changed(); });
  if (!changed()) return std::nullopt;
  return cache_changed_->error;
}

// The ranks drop requests that /pause_generation has paused; the front sends them again after the
// resume. It is paused only after CacheChanged has arrived, because the ranks may send outputs
// until then.
bool Supervisor::ReleaseCache(const PlannedChange& change, ChangeOutcome* outcome) {
  const auto start = SteadyClock::now();
  for (;;) {
    const std::optional<std::string> error = ChangeCacheOfRanks(/*release=*/true);
    if (error) {
      if (!error->empty()) {
        LOG_INFO("{}: {}, so the ranks end", change.what, *error);
        EndForRelease(start);
      }
      break;
    }
    std::optional<RanksEnd> end = TakeEnd();
    if (!end) {  // the server stops
      outcome->error = kShuttingDown;
      outcome->kind = ErrorKind::kUnavailable;
      return true;
    }
    if (!Restart(*std::move(end))) return false;
  }
  if (ranks_) front_.PauseForChange(start, layout_->groups());
  return true;
}

// Starts the ranks that have ended for a release.
bool Supervisor::StartReleased(ChangeOutcome* outcome) {
  try {
    const std::optional<RanksEnd> end = StartAgain();
    if (stopping_) {
      Drop();  // ends ranks that may still load
      return false;
    }
    if (end) outcome->error = fmt::format("the ranks do not load: {}", end->why);
  } catch (const std::exception& error) {
    outcome->error = fmt::format("the ranks do not load: {}", error.what());
  }
  if (!outcome->error.empty()) {
    Drop();
    layout_->Release();
  }
  return true;
}

// Gives the present ranks the memory of their cache again. If they have ended, starts new ones.
bool Supervisor::RestoreCache(ChangeOutcome* outcome) {
  if (const std::optional<std::string> error = ChangeCacheOfRanks(/*release=*/false)) {
    outcome->error = *error;
    return true;
  }
  std::optional<RanksEnd> end = TakeEnd();
  if (!end) return false;                       // the server stops
  if (!Restart(*std::move(end))) return false;  // there are no ranks now
  return StartReleased(outcome);
}

bool Supervisor::ResumeMemory(const PlannedChange& change, ChangeOutcome* outcome) {
  const bool was_released = released_.any();
  const MemoryTags left = {.weights = released_.weights && !change.memory.weights,
                           .kv_cache = released_.kv_cache && !change.memory.kv_cache};
  const bool starts = !left.weights && !(left.kv_cache && options_.ranks_free_cache);
  if (starts && !ranks_) {
    if (!StartReleased(outcome)) return false;
  } else if (starts && RanksLackCache()) {
    if (!RestoreCache(outcome)) return false;
  }
  if (!outcome->error.empty()) return true;
  released_ = left;
  if (was_released) ResumeFront();
  return true;
}

}  // namespace switchyard
