#include "server/ranks/supervisor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

// The number of ends in a row of ranks that had requests and answered none, after which the next
// ranks start immediately and with the pages of the cache.
constexpr int kFruitlessWithoutDelay = 2;

// How long to wait before the restart after this number of ends in a row of ranks that had requests
// and answered none. Without the wait, eight kills take less than a second, and the front could not
// distinguish kills from outside from those that a request causes.
std::chrono::milliseconds RestartDelay(int fruitless) {
  constexpr std::chrono::milliseconds kFirst{100}, kMost{2000};
  if (fruitless <= kFruitlessWithoutDelay) return {};
  return std::min(kMost, kFirst * (1 << std::min(fruitless - kFruitlessWithoutDelay - 1, 10)));
}

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

Supervisor::Supervisor(Options options, Front& front, StartEpoch start, OnLost on_lost)
    : options_(options),
      front_(front),
      start_(std::move(start)),
      on_lost_(std::move(on_lost)),
      deaths_(options.deaths),
      ranks_(Start()) {}

Supervisor::~Supervisor() {
  Stop();
  ranks_.reset();
}

std::unique_ptr<EngineRanks> Supervisor::Start() {
  return start_({.on_message = [this](const EngineMessage& m) { front_.OnMessage(m); },
                 .on_lost = [this](const RanksEnd& end) { OnEnd(end); }},
                [this] { return stopping_.load(); });
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
  watching_ = true;
  thread_ = std::thread([this] { Run(); });
}

std::string Supervisor::Silent(std::chrono::duration<double> limit) const {
  const std::lock_guard lock(mutex_);
  return ranks_ ? ranks_->Silent(limit) : std::string();
}

void Supervisor::OnEnd(const RanksEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    if (watching_) {
      end_ = end;
      changed_.notify_all();
      return;
    }
  }
  on_lost_(end.why);
}

void Supervisor::Run() {
  pthread_setname_np(pthread_self(), "supervisor");
  for (;;) {
    RanksEnd end;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || end_; });
      if (stopping_) return;
      end = *std::exchange(end_, std::nullopt);
    }
    if (!Restart(std::move(end))) return;
  }
}

// Kills and reaps the ranks, and adds to `end` how they ended. Throws if a rank does not end.
RankHost::Ending Supervisor::Reap(RanksEnd* end) {
  const auto start = Clock::now();
  RankHost::Ending ending = ranks_->Reap(options_.reap_timeout);  // only this thread changes ranks_
  end->failed = ending.failed;
  end->batch = ending.batch;
  LOG_INFO("all ranks have ended their epoch after {:.0f} ms", MillisecondsSince(start));
  return ending;
}

// Returns whether there are ranks again.
bool Supervisor::Restart(RanksEnd end) {
  front_.BeginPause(end.time);  // first, since the ranks may take long to end
  try {
    Reap(&end);
  } catch (const Error& error) {
    on_lost_(error.what());
    return false;
  }
  for (int starts = 1;; ++starts) {
    const int fruitless = front_.Pause(end);
    LOG_WARNING("{}; the ranks restart", end.why);
    if (!deaths_.Add(end.why, end.time, fruitless > 0)) {
      on_lost_(deaths_.Reasons());
      return false;
    }
    // `deaths_` would not stop loads that always fail but take longer than its time window.
    if (starts > options_.deaths.count) {
      on_lost_(
          fmt::format("ranks ended {} times in a row while they loaded: {}", starts - 1, end.why));
      return false;
    }
    try {
      // The pages may be what the machine's memory is short of, or may be damaged.
      if (ranks_ && fruitless > kFruitlessWithoutDelay) ranks_->ClearKept();
      Drop();
      if (!end.by_itself()) Delay(fruitless);
      const std::optional<RanksEnd> again = StartAgain();
      if (stopping_) {
        Drop();  // they may still load
        return false;
      }
      if (!again) break;
      Drop();
      const std::lock_guard lock(mutex_);
      end_.reset();  // the reader reports the same end
      end = *again;
    } catch (const std::exception& error) {  // also system errors, such as no descriptor
      on_lost_(error.what());
      return false;
    }
  }
  front_.Resume();
  return true;
}

void Supervisor::Delay(int fruitless) {
  const std::chrono::milliseconds delay = RestartDelay(fruitless);
  if (delay.count() == 0) return;
  LOG_INFO("the ranks have ended {} times in a row without an output: waiting {} ms", fruitless,
           delay.count());
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, delay, [this] { return stopping_.load(); });
}

// Joins the reader of the ranks, so that none of their messages arrives any more.
void Supervisor::Drop() {
  std::unique_ptr<EngineRanks> old;  // destroyed without the lock, which its reader may take
  const std::lock_guard lock(mutex_);
  old.swap(ranks_);
}

// Starts new ranks. Returns how they ended if one ended while they loaded. Throws if they did not
// join in time, and if the leader has found that the checkpoint or a flag is not valid: another
// start would fail as well.
std::optional<RanksEnd> Supervisor::StartAgain() {
  const auto start = Clock::now();
  std::unique_ptr<EngineRanks> started = Start();
  if (!started) return std::nullopt;  // stopping
  {
    const std::lock_guard lock(mutex_);
    ranks_ = std::move(started);
  }
  try {
    if (ranks_->WaitReady([](const LoadProgress&) {}, stopping_))
      LOG_INFO("new ranks have loaded after {:.0f} ms", MillisecondsSince(start));
    return std::nullopt;
  } catch (const Error& error) {
    RanksEnd end{.why = error.what(), .time = Clock::now()};
    if (!Reap(&end).by_signal && error.kind() != ErrorKind::kPeer) throw;
    return end;
  }
}

void Supervisor::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool Supervisor::Shutdown(std::chrono::milliseconds timeout) {
  Stop();
  return !ranks_ || ranks_->Shutdown(timeout);
}

}  // namespace switchyard
