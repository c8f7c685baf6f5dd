#include "server/ranks/supervisor.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "core/log_queue.h"

namespace switchyard {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Number of consecutive ends without output (the ranks had requests and sent no output) up to which
// the next ranks start without delay and keep the cached KV pages.
constexpr int kNoOutputEndsWithoutDelay = 2;

// Delay of the next restart after `no_output_ends` consecutive ends without output. Without the
// delay, eight kills take less than a second, and the front could not tell kills that a request
// causes from other kills.
std::chrono::milliseconds RestartDelay(int no_output_ends) {
  constexpr std::chrono::milliseconds kFirst{100}, kMost{2000};
  if (no_output_ends <= kNoOutputEndsWithoutDelay) return {};
  return std::min(kMost,
                  kFirst * (1 << std::min(no_output_ends - kNoOutputEndsWithoutDelay - 1, 10)));
}

double MillisecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

}  // namespace

Supervisor::Supervisor(Options options, Front& front, std::shared_ptr<RankLayout> layout,
                       OnLost on_lost)
    : options_(options),
      front_(front),
      on_lost_(std::move(on_lost)),
      deaths_(options.deaths),
      layout_(std::move(layout)),
      ranks_(Start(*layout_, &present_)) {}

Supervisor::~Supervisor() {
  Stop();
  ranks_.reset();
}

// The front accepts messages from one thread at a time. Ranks that load beside the present ranks
// send only their loading progress, which does not change any request of the front.
std::unique_ptr<EngineRanks> Supervisor::Start(RankLayout& layout, uint64_t* number,
                                               bool may_be_absent) {
  {
    const std::lock_guard lock(mutex_);
    *number = ++started_;
  }
  return layout.Start(
      {.on_message =
           [this](const EngineMessage& m) {
             const auto* changed = std::get_if<CacheChanged>(&m);
             if (!changed) return front_.OnMessage(m);
             const std::lock_guard lock(mutex_);
             cache_changed_ = *changed;
             changed_.notify_all();
           },
       .on_lost = [this, id = *number](const RanksEnd& end) { OnEnd(id, end); }},
      [this] { return stopping_ || (beside_ && interrupted_); }, may_be_absent);
}

void Supervisor::Send(const std::vector<ControlMessage>& messages) {
  const std::lock_guard lock(mutex_);
  if (ranks_) ranks_->Send(messages);
}

std::optional<RankReady> Supervisor::WaitReady(
    const std::function<void(const LoadProgress&)>& progress, const std::atomic<bool>& cancelled) {
  return ranks_->WaitReady(progress, cancelled);
}

void Supervisor::Watch() {
  if (!options_.restarts) return;
  const std::lock_guard lock(mutex_);
  watching_ = runs_ = true;
  thread_ = std::thread([this] { Run(); });
}

std::string Supervisor::Silent(std::chrono::duration<double> limit) const {
  const std::lock_guard lock(mutex_);
  return ranks_ ? ranks_->Silent(limit) : std::string();
}

SpareRanks Supervisor::Spares() const {
  const std::lock_guard lock(mutex_);
  if (ranks_) spares_ = ranks_->Spares();
  return spares_;
}

bool Supervisor::has_ranks() const {
  const std::lock_guard lock(mutex_);
  return ranks_ != nullptr;
}

void Supervisor::OnEnd(uint64_t number, const RanksEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    if (watching_) {
      ends_[number] = end;
      interrupted_ = interrupted_ || number == present_;
      changed_.notify_all();
      return;
    }
  }
  on_lost_(end.why);
}

// Removes and returns the end of the present ranks; nullopt if none has been reported.
std::optional<RanksEnd> Supervisor::TakeEnd() {
  const std::lock_guard lock(mutex_);
  auto node = ends_.extract(present_);
  if (!node) return std::nullopt;
  return std::move(node.mapped());
}

void Supervisor::Run() {
  pthread_setname_np(pthread_self(), "supervisor");
  constexpr std::chrono::milliseconds kPoll{5};
  for (bool serving = true; serving;) {
    {
      std::unique_lock lock(mutex_);
      // A rank that has loaded writes to shared memory, which does not notify `changed_`. A load
      // that hangs ends this wait too: RankProcesses kills the rank.
      const auto wakes = [this] {
        return stopping_ || ends_.contains(present_) ||
               (absent_.empty() ? pending_.has_value() : ranks_ && ranks_->AbsentHaveLoaded());
      };
      if (absent_.empty()) changed_.wait(lock, wakes);
      while (!wakes()) {
        LogAbsent();
        changed_.wait_for(lock, kPoll);
      }
      if (stopping_) break;
    }
    ChangeOutcome outcome;
    std::optional<RanksEnd> end = TakeEnd();
    serving = end ? Restart(*std::move(end)) : absent_.empty() ? Change() : Rejoin(&outcome);
  }
  {
    const std::lock_guard lock(mutex_);
    runs_ = false;
  }
  EndChange({.error = stopping_ ? kShuttingDown : "the server has lost its ranks",
             .kind = ErrorKind::kUnavailable});
}

// Kills and reaps the ranks, and adds to `end` how they ended. Throws if a rank does not end.
RankHost::Ending Supervisor::Reap(RanksEnd* end) {
  const auto start = SteadyClock::now();
  RankHost::Ending ending = ranks_->Reap(options_.reap_timeout);  // only this thread changes ranks_
  end->failed = ending.failed;
  end->batch = ending.batch;
  LOG_INFO("all ranks have ended their epoch after {:.0f} ms", MillisecondsSince(start));
  return ending;
}

// Returns true if ranks serve again.
bool Supervisor::Restart(RanksEnd end) {
  front_.BeginPause(end.time);  // before the ranks are reaped, because they may take long to end
  try {
    Reap(&end);
  } catch (const Error& error) {
    on_lost_(error.what());
    return false;
  }
  if (RanksLackCache()) {  // new ranks would allocate it
    LOG_WARNING("{}; the ranks start again when the memory is resumed", end.why);
    front_.Pause(end);
    Drop();
    absent_.clear();
    layout_->Release();
    return true;
  }
  return StartUntilServing(std::move(end), /*may_be_absent=*/true);
}

// Starts ranks, again if they end while they load, until they serve. Then resumes the front. `end`:
// how the last ranks ended; nullopt: they ended as planned, and the front is already paused.
// `may_be_absent`: they may serve without the ranks that are started now. Returns true if ranks
// serve again.
bool Supervisor::StartUntilServing(std::optional<RanksEnd> end, bool may_be_absent) {
  for (int starts = 1;; ++starts) {
    const int no_output_ends = end ? front_.Pause(*end) : 0;
    if (end) {
      LOG_WARNING("{}; the ranks restart", end->why);
      if (!deaths_.Add(end->why, end->time, no_output_ends > 0)) {
        on_lost_(deaths_.Reasons());
        return false;
      }
      // This limit is needed in addition to deaths_, whose time window may be shorter than one
      // load.
      if (starts > options_.deaths.count) {
        on_lost_(fmt::format("ranks ended {} times in a row while they loaded: {}", starts - 1,
                             end->why));
        return false;
      }
    }
    try {
      // The kept pages may be damaged, or the machine may lack memory because of them.
      if (ranks_ && no_output_ends > kNoOutputEndsWithoutDelay) ranks_->ClearKept();
      Drop();
      if (end && !end->by_itself()) Delay(no_output_ends);
      end = StartAgain(may_be_absent || end);
      if (stopping_) {
        Drop();  // ends ranks that may still load
        return false;
      }
      if (!end) break;
      Drop();
    } catch (const std::exception& error) {
      // Also catches system errors, such as no free descriptor.
      on_lost_(error.what());
      return false;
    }
  }
  ResumeFront();
  return true;
}

void Supervisor::Delay(int no_output_ends) {
  const std::chrono::milliseconds delay = RestartDelay(no_output_ends);
  if (delay.count() == 0) return;
  LOG_INFO("the ranks have ended {} times in a row without an output: waiting {} ms",
           no_output_ends, delay.count());
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, delay, [this] { return stopping_.load(); });
}

// Takes the ranks and joins their reader, so that no more messages arrive from them. Drops an end
// that the reader has reported, because the caller already handles the end of these ranks.
std::unique_ptr<EngineRanks> Supervisor::Detach() {
  std::unique_ptr<EngineRanks> old;
  {
    const std::lock_guard lock(mutex_);
    old.swap(ranks_);
  }
  if (old) old->Close();  // not under the lock, because the reader may take it
  TakeEnd();
  return old;
}

// Ends the ranks of a layout that is no longer in use. This happens on another thread, because
// killed processes may take long to end and this thread must handle the ends of present ranks.
// `ranks` may be null.
void Supervisor::Discard(std::unique_ptr<EngineRanks> ranks, std::shared_ptr<RankLayout> layout) {
  if (ranks) ranks->Discard();
  std::erase_if(discards_, [](const std::future<void>& ended) {
    return ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  auto end = [ranks = std::move(ranks), layout = std::move(layout)]() mutable {
    pthread_setname_np(pthread_self(), "discard");
    ranks.reset();
    layout->Release();  // explicitly, because other references may keep the layout alive
    layout.reset();
  };
  try {
    discards_.push_back(std::async(std::launch::async, std::move(end)));
  } catch (const std::system_error& error) {  // destroying `end` has ended the ranks on this thread
    LOG_WARNING("cannot start a thread to discard ranks: {}", error.what());
  }
}

// Starts new ranks. If one of them ended while they loaded, returns how they ended. Throws if
// another start would fail too: the ranks did not join in time, or the leader found the checkpoint
// or a flag invalid.
std::optional<RanksEnd> Supervisor::StartAgain(bool may_be_absent) {
  const auto start = SteadyClock::now();
  uint64_t number = 0;
  std::unique_ptr<EngineRanks> started = Start(*layout_, &number, may_be_absent);
  if (!started) return std::nullopt;  // the server is stopping
  {
    const std::lock_guard lock(mutex_);
    present_ = number;
    ranks_ = std::move(started);
  }
  try {
    if (ranks_->WaitReady([](const LoadProgress&) {}, stopping_))
      LOG_INFO("new ranks have loaded after {:.0f} ms", MillisecondsSince(start));
    return std::nullopt;
  } catch (const Error& error) {
    RanksEnd end{.why = error.what(), .time = SteadyClock::now()};
    if (!Reap(&end).by_signal && error.kind() != ErrorKind::kPeer) throw;
    return end;
  }
}

void Supervisor::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = interrupted_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  const auto until = SteadyClock::now() + options_.reap_timeout;
  for (const std::future<void>& ended : discards_) {
    if (ended.wait_until(until) == std::future_status::ready) continue;
    LOG_ERROR("discarded ranks that were killed do not end; the process exits without them");
    FlushLog(std::chrono::seconds(1));
    _exit(1);
  }
  discards_.clear();
}

bool Supervisor::Shutdown(std::chrono::milliseconds timeout) {
  Stop();
  return !ranks_ || ranks_->Shutdown(timeout);
}

}  // namespace switchyard
