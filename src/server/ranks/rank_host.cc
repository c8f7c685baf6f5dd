#include "server/ranks/rank_host.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "comm/host/control_socket.h"
#include "core/duration.h"
#include "core/error.h"
#include "core/log.h"
#include "core/log_queue.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// How long a silent rank may take to exit after its arena is aborted.
constexpr auto kEndTime = 5s;

std::vector<int> RanksOfOtherNodes(const RankProcesses::Options& options) {
  if (!options.network) return {};
  return RanksWatchedFrom(options.network->first_rank(), options.network->world.ranks_per_node,
                          options.world);
}

std::vector<int> WithRank(std::vector<int> ranks, int rank) {
  ranks.push_back(rank);
  return ranks;
}

}  // namespace

std::vector<int> RanksWatchedFrom(int first, int count, int world) {
  if (first > 0) return {0};
  std::vector<int> ranks;
  for (int rank = count; rank < world; ++rank) ranks.push_back(rank);
  return ranks;
}

RankLoopIo LeaderIo(const std::string& endpoint) {
  const auto socket = std::make_shared<ControlSocket>(ControlSocket::Connect(endpoint));
  RankLoopIo io;
  // Returns all messages that have arrived, because the next call comes only after an engine step.
  io.receive = [socket](std::chrono::milliseconds timeout) {
    std::vector<ControlMessage> all;
    for (auto bytes = socket->Receive(timeout); bytes;
         bytes = socket->Receive(std::chrono::milliseconds(0))) {
      std::vector<ControlMessage> some = DecodeControl(*bytes);
      std::move(some.begin(), some.end(), std::back_inserter(all));
    }
    return all;
  };
  io.send = [socket](const EngineMessage& message) { socket->Send(EncodeMessage(message)); };
  return io;
}

ProcessHost::ProcessHost(const std::shared_ptr<SharedArena>& arena, RankProcesses::Options options,
                         const OnExit& on_exit)
    : arena_(arena),
      alone_(!options.network),
      others_(arena, RanksOfOtherNodes(options), options.watchdog_timeout,
              [on_exit](const RankSilence& silence) { on_exit(silence.Reason(), /*cause=*/true); }),
      processes_(arena, std::move(options), [this, on_exit](const RankExit& e) {
        {
          const std::lock_guard lock(mutex_);
          exits_.push_back(e);
        }
        // A killed rank is the root cause, even if another rank detected its death first and set
        // e.reason.
        const bool killed = e.signal != 0;
        on_exit(killed || e.reason.empty() ? e.Describe() : e.reason,
                killed || (alone_ && !e.reason.empty()));
      }) {}

// A rank may end by itself because another one was killed: then the kill is the cause.
RankHost::Ending ProcessHost::HowEnded() const {
  Ending ending{.batch = std::vector<uint64_t>()};
  {
    const std::lock_guard lock(mutex_);
    ending.by_itself = !exits_.empty() && std::ranges::all_of(exits_, &RankExit::ByItself);
    ending.by_signal =
        std::ranges::any_of(exits_, [](const RankExit& exit) { return exit.signal != 0; });
  }
  for (int rank = 0; rank < arena_->world() && ending.batch; ++rank) {
    const auto work = arena_->Work(rank);
    if (!work) {
      ending.batch.reset();
    } else {
      ending.batch->insert(ending.batch->end(), work->begin(), work->end());
    }
  }
  return ending;
}

RankSilence ProcessHost::LongestSilence() const {
  const RankSilence own = processes_.LongestSilence(), other = others_.Longest();
  return other.length > own.length ? other : own;
}

ThreadHost::ThreadHost(RankJob job, int rank, std::shared_ptr<SharedArena> arena,
                       std::string endpoint, OnExit on_exit)
    : job_(std::move(job)),
      rank_(rank),
      endpoint_(std::move(endpoint)),
      on_exit_(std::move(on_exit)),
      arena_(arena),
      watch_(arena, WithRank(RanksWatchedFrom(rank, 1, job_.config.mesh.tp), rank),
             Milliseconds(job_.config.watchdog_timeout_seconds),
             [this](const RankSilence& silence) { OnSilent(silence); }),
      thread_([this, arena = std::move(arena)]() mutable { Run(std::move(arena)); }) {}

ThreadHost::~ThreadHost() {
  KillAll();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ || hung_; });
    if (!changed_.wait_for(lock, kEndTime, [this] { return ended_; })) {
      LOG_ERROR("rank {} does not end; the process exits without it", rank_);
      FlushLog(1s);
      _exit(1);
    }
  }
  thread_.join();
}

// After an abort, the silence of another rank is a consequence of the abort. But if this process's
// own rank is silent, it hangs during its end.
void ThreadHost::OnSilent(const RankSilence& silence) {
  const bool own = silence.rank == rank_;
  std::string why = silence.Reason();
  if (const auto arena = arena_.lock()) {
    if (!own && arena->aborted()) return;
    arena->AbortHere(why);  // ends the wait of this process's rank for the silent one
    why = arena->AbortReason();
  }
  if (!killed_) {
    LOG_WARNING("{}", silence.Reason());  // at once, since a launcher may soon kill this process
    on_exit_(why, /*cause=*/true);
  }
  if (!own) return;
  const std::lock_guard lock(mutex_);
  hung_ = true;
  changed_.notify_all();
}

// An abort of the arena does not interrupt an idle leader, so its receive function checks killed_.
RankLoopIo ThreadHost::Io() const {
  if (endpoint_.empty()) return {};
  RankLoopIo io = LeaderIo(endpoint_);
  io.receive = [this, receive = std::move(io.receive)](std::chrono::milliseconds timeout) {
    if (killed_) throw Error(ErrorKind::kPeer, "the front has stopped this rank");
    return receive(timeout);
  };
  return io;
}

void ThreadHost::Run(std::shared_ptr<SharedArena> arena) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank_).c_str());
  std::string how = fmt::format("rank {} ended", rank_);
  bool clean = false;
  try {
    RunRankLoop(job_.config, job_.plan, rank_, arena, Io());
    clean = true;
  } catch (const std::exception& error) {
    how = fmt::format("rank {} failed: {}", rank_, error.what());
  }
  watch_.Stop();
  arena.reset();  // closes the connections to the other ranks
  bool is_news = false;
  {
    const std::lock_guard lock(mutex_);
    is_news = !killed_ && !(end_expected_ && clean);
  }
  if (is_news) on_exit_(how, /*cause=*/false);
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void ThreadHost::ExpectEnd() {
  const std::lock_guard lock(mutex_);
  end_expected_ = true;
}

bool ThreadHost::WaitEnded(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  end_expected_ = true;
  if (changed_.wait_for(lock, timeout, [this] { return ended_; })) return true;
  lock.unlock();
  KillAll();
  return false;
}

void ThreadHost::KillAll() {
  killed_ = true;
  if (const auto arena = arena_.lock()) arena->AbortHere("the front has stopped its rank");
}

}  // namespace switchyard
