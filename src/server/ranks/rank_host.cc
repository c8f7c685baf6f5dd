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

// Maximum time in which a silent rank must exit after its arena is aborted.
constexpr auto kEndTime = 5s;
// Maximum time in which a rank must end its epoch after an abort. A rank checks for an abort in
// each layer.
constexpr auto kSettleTime = 2s;
// The same on GPUs, where a rank aborts NCCL, and frees graphs and memory.
constexpr auto kGpuSettleTime = 6s;
// Maximum time in which killed processes must end. It is long because they may have much memory to
// release.
constexpr auto kKillTime = 30s;

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
  RankLoopIo io;
  if (endpoint.empty()) {
    io.reconnect = LeaderIo;
    return io;
  }
  const auto socket = std::make_shared<ControlSocket>(ControlSocket::Connect(endpoint));
  // Returns all messages that have arrived, because the next call follows only after an engine
  // step.
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
  io.reconnect = [socket](const std::string& next) {
    socket->DiscardUnsent();  // the front has closed its end
    return LeaderIo(next);
  };
  return io;
}

ProcessHost::ProcessHost(const std::shared_ptr<SharedArena>& arena, RankProcesses::Options options,
                         OnExit on_exit)
    : arena_(arena),
      on_exit_(std::move(on_exit)),
      alone_(!options.network),
      on_gpus_(options.keeps_descriptors),
      others_(arena, RanksOfOtherNodes(options), options.watchdog_timeout,
              [this](const RankSilence& silence) { Report(silence.Reason(), /*cause=*/true); }),
      processes_(arena, std::move(options), [this](const RankExit& e) {
        {
          const std::lock_guard lock(mutex_);
          exits_.push_back(e);
        }
        // A kill by a signal is the root cause, even if another rank detected this rank's death
        // first and set e.reason.
        const bool killed = e.signal != 0;
        Report(killed || e.reason.empty() ? e.Describe() : e.reason,
               killed || (alone_ && !e.reason.empty()));
      }) {}

void ProcessHost::Report(const std::string& how, bool cause) {
  const std::lock_guard lock(report_mutex_);
  if (on_exit_) on_exit_(how, cause);
}

void ProcessHost::Detach() {
  const std::lock_guard lock(report_mutex_);
  on_exit_ = nullptr;
}

bool ProcessHost::Settle(std::chrono::milliseconds timeout) {
  return processes_.Settle(on_gpus_ ? kGpuSettleTime : kSettleTime, timeout);
}

void ProcessHost::BeginEpoch(const std::string& endpoint, OnExit on_exit,
                             RankProcesses::RunsWith runs_with, std::string message) {
  {
    const std::lock_guard lock(mutex_);
    exits_.clear();
  }
  {
    const std::lock_guard lock(report_mutex_);
    on_exit_ = std::move(on_exit);
  }
  const std::vector<int> started =
      processes_.BeginEpoch(endpoint, std::move(runs_with), std::move(message));
  if (!started.empty() && std::ssize(started) < arena_->world())
    LOG_INFO("rank {} is started again; the others keep their weights", Joined(started, ", "));
  if (const std::vector<int> absent = Absent(); !absent.empty())
    LOG_INFO("the others serve without rank {} until it has loaded", Joined(absent, ", "));
}

ProcessHost::~ProcessHost() {
  if (processes_.Kill(kKillTime)) return;
  if (discarded_) {  // no exit: the destructor of processes_ waits until they have ended
    LOG_ERROR("discarded ranks were killed but have not ended after {} s: pid {}",
              std::chrono::seconds(kKillTime).count(), Joined(processes_.Running(), ", "));
    return;
  }
  LOG_ERROR("a rank that was killed does not end; the process exits without it");
  FlushLog(1s);
  _exit(1);
}

void RankHost::Ending::NameFailed(bool alone) {
  std::vector<int> exited;
  failed.clear();
  by_signal = false;
  for (const RankExit& exit : exits) {
    by_signal |= exit.signal != 0;
    (exit.signal != 0 ? failed : exited).push_back(exit.rank);
  }
  if (!std::ranges::all_of(exits, &RankExit::ByItself)) {
    failed.clear();
  } else if (failed.empty() && alone) {
    failed = std::move(exited);
  }
}

NodeRanksEnd RankHost::RanksEndOfNode() const {
  const Ending ending = HowEnded();
  NodeRanksEnd end{.batch = ending.batch};
  for (const RankExit& exit : ending.exits)
    end.exits.push_back({.rank = exit.rank, .code = exit.code, .signal = exit.signal});
  return end;
}

// With several nodes, the batch is that of the ranks of this node.
RankHost::Ending ProcessHost::HowEnded() const {
  Ending ending{.batch = std::vector<uint64_t>()};
  {
    const std::lock_guard lock(mutex_);
    ending.exits = exits_;
  }
  ending.NameFailed(alone_);
  for (int rank = 0; rank < arena_->world() && ending.batch; ++rank) {
    const auto requests = arena_->RecordedRequests(rank);
    if (!requests) {
      ending.batch.reset();
    } else {
      ending.batch->insert(ending.batch->end(), requests->begin(), requests->end());
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
      watch_(arena, WithRank(RanksWatchedFrom(rank, 1, job_.config.mesh.world()), rank),
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

// After an abort, silence of another rank is a consequence of the abort, so it is ignored. But if
// the rank of this process is silent, it hangs while it ends.
void ThreadHost::OnSilent(const RankSilence& silence) {
  const bool own = silence.rank == rank_;
  std::string why = silence.Reason();
  if (const auto arena = arena_.lock()) {
    if (!own && arena->aborted()) return;
    arena->AbortHere(why);  // ends the wait of this process's rank for the silent one
    why = arena->AbortReason();
  }
  if (!killed_) {
    LOG_WARNING("{}",
                silence.Reason());  // immediately, since a launcher may soon kill this process
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
