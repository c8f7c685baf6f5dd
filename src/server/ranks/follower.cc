#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/host/heartbeat_watch.h"
#include "core/duration.h"
#include "core/error.h"
#include "core/log.h"
#include "server/ranks/membership.h"
#include "server/ranks/served_layout.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// Time to wait for a report of the root cause after a rank or node has ended.
constexpr auto kCauseTime = 300ms;
// Time limit for killed ranks to end, before node 0 learns how they ended.
constexpr auto kKillTime = 2s;

// How the engine ended. Keeps the first report of a root cause, or the first report of any kind if
// no root cause is reported. Thread-safe.
class Outcome {
 public:
  void End() {
    const std::lock_guard lock(mutex_);
    if (!lost_) ended_ = true;
  }
  void Lose(const std::string& why, bool cause) {
    const std::lock_guard lock(mutex_);
    if (ended_ || (lost_ && (is_cause_ || !cause))) return;
    lost_ = why;
    is_cause_ = cause;
  }
  bool ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  bool cause_known() const {
    const std::lock_guard lock(mutex_);
    return is_cause_;
  }
  std::optional<std::string> lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

 private:
  mutable std::mutex mutex_;
  bool ended_ = false;
  bool is_cause_ = false;
  std::optional<std::string> lost_;
};

// Waits for the end of the engine. False if a second signal ends the wait.
bool WaitForOutcome(const Outcome& outcome, const StopSignals& signals, ServiceManager& manager) {
  bool asked = false;
  while (!outcome.ended() && !outcome.lost()) {
    manager.Alive();
    if (!signals.Wait(100ms)) continue;
    if (asked) return false;
    asked = true;
    manager.Stopping();
    LOG_INFO("this node exits when node 0 exits; send a second signal to end it now");
  }
  const auto give_up = std::chrono::steady_clock::now() + kCauseTime;
  while (outcome.lost() && !outcome.cause_known() && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(5ms);
  return true;
}

RankJob JobOf(const Membership& membership, const EngineConfig& config) {
  RankJob job = DecodeRankSpec(membership.job, config.model_path,
                               config.speculative.draft_model_path, config.speculative.token_map);
  job.config.backends = config.backends;
  job.config.base_gpu_id = config.base_gpu_id;  // these settings differ between hosts
  job.config.gpu_id_step = config.gpu_id_step;
  job.config.cpu_bind = config.cpu_bind;
  return job;
}

// How an epoch of the node's ranks ended.
enum class EpochEnd : uint8_t { kEnded, kStopped, kLost };

// Runs the node's ranks until the engine ends or is lost. Then closes the connection to node 0.
EpochEnd RunEpoch(const ServerArgs& args, const Launch& launch, Membership& membership,
                  const std::vector<FileStamp>& weights, const StopSignals& signals,
                  ServiceManager& manager) {
  Outcome outcome;
  NodeGroup& nodes = *membership.nodes;
  const auto report = [&](const std::string& how, bool cause) {
    nodes.SendLost(how, cause);
    outcome.Lose(how, cause);
  };
  auto host = StartRanks(launch, membership, JobOf(membership, args.engine),
                         RestartOptions::Of(args, launch.rejoins), {},
                         WithChangedFiles(weights, report), {});
  // Ranks exit cleanly only after a shutdown message, so a clean exit is no failure.
  host->ExpectEnd();
  nodes.Watch({.on_lost = [&](const std::string& why, bool cause) { outcome.Lose(why, cause); },
               .on_end = [&] { outcome.End(); }});
  const bool waited = WaitForOutcome(outcome, signals, manager);
  EpochEnd end = EpochEnd::kEnded;
  if (const auto why = outcome.lost()) {
    end = EpochEnd::kLost;
    if (launch.rejoins) {
      LOG_WARNING("{}; this node rejoins", *why);
    } else {
      LOG_ERROR("{}", *why);
    }
  } else if (!waited) {
    end = EpochEnd::kStopped;
    nodes.SendLost("the node was stopped by a signal", /*cause=*/true);
  } else if (!host->WaitEnded(10s)) {
    LOG_WARNING("some ranks did not exit in time and were killed");
  }
  if (end == EpochEnd::kLost && launch.rejoins && host->Kill(kKillTime))
    nodes.SendRanksEnd(host->RanksEndOfNode());
  host.reset();  // destroyed first: its threads use `nodes`, and threads of `nodes` use `outcome`
  membership.nodes.reset();
  return end;
}

}  // namespace

int RunFollower(const ServerArgs& args, const Launch& launch, const StopSignals& signals,
                ServiceManager& manager) {
  std::atomic<int> interrupted{0};  // the signal that interrupted the startup
  const FindSignal find_signal = [&] {
    if (const int signal = signals.Wait(0ms)) interrupted = signal;
    return interrupted.load();
  };
  const auto weights = CheckWeights(args, find_signal);
  if (!weights) return 128 + interrupted;  // exit code of a shell for a signal
  std::optional<Membership> membership = Join(launch, args.engine, find_signal);
  if (!membership) return 128 + interrupted;
  const RankJob job = JobOf(*membership, args.engine);
  if (launch.launched) InitLog(job.config.log_level, Mesh(job.config.mesh, launch.node).Title());
  if (!ConnectLaunchedRank(launch, *membership, job, find_signal)) return 128 + interrupted;
  if (membership->mpi) {  // no restarts: the MPI launcher ends all ranks if one is lost
    const auto& arena = membership->arena;
    // Without this watch, the ranks would wait forever if the process of rank 0 is stopped.
    const HeartbeatWatch watch(
        arena, {0}, Milliseconds(job.config.watchdog_timeout_seconds),
        [&arena](const RankSilence& silence) { arena->AbortHere(silence.Reason()); });
    RunRankLoop(job.config, job.plan, launch.node, arena, {});
    return 0;
  }
  manager.Ready(fmt::format("node {} of {} of an engine", launch.node, launch.nodes));
  // Called by this thread only, while it waits for node 0.
  const FindSignal wait = [&] {
    manager.Alive();
    return find_signal();
  };
  for (;;) {
    const EpochEnd end = RunEpoch(args, launch, *membership, *weights, signals, manager);
    if (end == EpochEnd::kEnded) break;
    if (end == EpochEnd::kStopped || !launch.rejoins) return 1;
    if (const std::string changes = DescribeChanges(*weights); !changes.empty())
      throw Error(ErrorKind::kResource, "the ranks cannot restart with changed weights" + changes);
    try {
      membership = Rejoin(launch, args.engine, wait);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnavailable) throw;
      LOG_ERROR("{}", error.what());
      return 1;
    }
    if (!membership) return 128 + interrupted;
  }
  LOG_INFO("node 0 has ended the engine; this node exits");
  return 0;
}

}  // namespace switchyard
