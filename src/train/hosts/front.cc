#include "train/hosts/front.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device/mpi/mpi_session.h"
#include "comm/device/tcp/tcp_ranks.h"
#include "comm/host/control_socket.h"
#include "comm/host/node_group.h"
#include "core/error.h"
#include "core/format.h"
#include "core/log.h"
#include "core/log_queue.h"
#include "train/run/checkpoint.h"
#include "train/run/trainer.h"

namespace switchyard::train {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPoll = 20ms;
// For killed ranks to end. They may have much memory to release.
constexpr auto kKillTime = 30s;
// For a message of another node, which may name the cause of a failure.
constexpr auto kCauseTime = 5s;
// For node 0 to end the run after the ranks of this node have ended.
constexpr auto kFarewellTime = 60s;
// Ends the message to other nodes if the run shall not be restarted.
constexpr std::string_view kFinal = " (the run is not restarted)";

// How the ranks of an attempt ended.
struct Ending {
  bool failed = false;
  bool cause = false;  // `why` is the root cause
  bool final = false;  // a restart would fail again
  std::string why;
};

// What happens during an attempt, reported by several threads.
class Events {
 public:
  void Exit(const RankExit& exit) {
    const std::lock_guard lock(mutex_);
    exits_.push_back(exit);
  }
  void Lost(const std::string& why, bool cause) {
    const std::lock_guard lock(mutex_);
    lost_ = Ending{.failed = true, .cause = cause, .final = why.ends_with(kFinal), .why = why};
    changed_.notify_all();
  }
  void End() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  // Waits until another node reports a failure, or node 0 the end.
  std::optional<Ending> News(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return lost_ || ended_; });
    return ended_ ? std::nullopt : lost_;
  }
  // The ending of this node's ranks. A kill by a signal is the root cause, even if another rank
  // detected it first.
  Ending OfRanks() {
    const std::lock_guard lock(mutex_);
    for (const RankExit& exit : exits_)
      if (exit.signal != 0) return {.failed = true, .cause = true, .why = exit.Describe()};
    Ending ending;
    for (const RankExit& exit : exits_) {
      const bool final = exit.code == kInputError;
      if (ending.failed && !final) continue;
      ending = {.failed = true,
                .cause = final,
                .final = final,
                .why = exit.reason.empty() ? exit.Describe() : exit.reason};
      if (final) break;
    }
    return ending;
  }

 private:
  std::mutex mutex_;  // guards all members
  std::condition_variable changed_;
  std::vector<RankExit> exits_;
  std::optional<Ending> lost_;
  bool ended_ = false;
};

int RanksOf(const FrontOptions& options) { return options.training.layout.ranks(); }

// Meets the other nodes. `job`: the value of --resume, which node 0 decides. Null: `stop` returned
// true.
std::unique_ptr<NodeGroup> MeetOnce(const FrontOptions& options, const std::string& job,
                                    bool restart, const std::function<bool()>& stop) {
  const Launch& launch = options.launch;
  const NodeGroup::Options group{.nodes = launch.nodes,
                                 .node = launch.node,
                                 .address = *launch.address,
                                 .ranks_per_node = launch.ranks_per_node,
                                 .statement = options.statement,
                                 .secret = launch.secret,
                                 .timeout = options.training.timeout,
                                 .give_up = stop,
                                 .restart = restart};
  return launch.leads() ? NodeGroup::Lead(group, job) : NodeGroup::Join(group);
}

std::unique_ptr<NodeGroup> Meet(const FrontOptions& options, const std::string& job, bool restart,
                                const std::function<bool()>& stop) {
  const auto until = Clock::now() + options.training.timeout;
  for (;;) {
    try {
      auto nodes = MeetOnce(options, job, restart, stop);
      if (nodes != nullptr) return nodes;
      throw Error(ErrorKind::kPeer, "the run was stopped before all nodes had joined");
    } catch (const Error& error) {
      // A node left before all had joined. After a restart it may join again.
      if (!restart || stop() || error.kind() != ErrorKind::kPeer || Clock::now() >= until) throw;
      LOG_WARNING("{}", error.what());
    }
  }
}

void WarnWithoutSecret(const Launch& launch) {
  if (!launch.address || !launch.secret.empty() || (launch.launched && !launch.leads())) return;
  LOG_WARNING(
      "nodes are not authenticated: any host that reaches {} can join or end the run; pass "
      "--dist-secret-file on all nodes",
      launch.address->Text());
}

// Ends this process, because a killed rank does not end: the destructor of RankProcesses would wait
// for it without a limit. `nodes`: null on one node.
[[noreturn]] void ExitWithout(const std::vector<int>& pids, const std::string& why,
                              NodeGroup* nodes) {
  LOG_ERROR("{}; ranks were killed but have not ended after {} s, so the process exits: pid {}",
            why, std::chrono::seconds(kKillTime).count(), Joined(pids, ", "));
  if (nodes != nullptr) nodes->SendLost(why, /*cause=*/false);
  FlushLog(1s);
  _exit(1);
}

// Starts the ranks of this node once and waits until they have ended. `nodes`: null on one node.
Ending RunAttempt(const FrontOptions& options, const std::string& resume,
                  std::unique_ptr<NodeGroup> group, const std::function<bool()>& stop) {
  Events events;
  const auto arena = SharedArena::Create(RanksOf(options), ArenaBytesPerRank(options.training));
  const std::string endpoint = ControlSocket::UniqueEndpoint();
  ControlSocket control = ControlSocket::Bind(endpoint);
  RankProcesses::Options start{.world = RanksOf(options),
                               .spec = options.spec(resume),
                               .command = kRankCommand,
                               .control_endpoint = endpoint,
                               .join_timeout = options.training.timeout,
                               .stall_timeout = options.stall_timeout};
  if (group != nullptr) start.network = std::move(group->network());
  RankProcesses ranks(arena, std::move(start), [&](const RankExit& exit) { events.Exit(exit); });
  ranks.ExpectEnd();
  // Destroyed first, because its threads use the objects above.
  const std::unique_ptr<NodeGroup> nodes = std::move(group);
  if (nodes != nullptr) {
    nodes->Watch({.on_lost =
                      [&](const std::string& why, bool cause) {
                        events.Lost(why, cause);
                        arena->Abort(why);
                      },
                  .on_end = [&] { events.End(); }});
  }

  bool told = false, killed = false;
  std::optional<Clock::time_point> give_up;
  while (!ranks.Running().empty()) {
    if (!std::exchange(told, told || stop()) && told) control.Send("stop");
    if (!give_up && arena->aborted()) give_up = Clock::now() + options.end_time;
    if (give_up && Clock::now() >= *give_up) {
      killed = true;
      if (!ranks.Kill(kKillTime)) ExitWithout(ranks.Running(), arena->AbortReason(), nodes.get());
    }
    std::this_thread::sleep_for(kPoll);
  }
  ranks.WaitEnded(kKillTime);
  control.DiscardUnsent();

  Ending ending = events.OfRanks();
  // RankProcesses does not report the exits of ranks that it has killed.
  if (!ending.failed && killed) ending = {.failed = true, .why = arena->AbortReason()};
  if (nodes == nullptr) return ending;
  if (!ending.failed) {
    if (options.launch.leads()) {
      nodes->SendEnd();
      return ending;
    }
    return events.News(kFarewellTime).value_or(ending);
  }
  if (!ending.cause) ending = events.News(kCauseTime).value_or(ending);
  std::string why = ending.why;
  if (ending.final && !why.ends_with(kFinal)) why += kFinal;
  nodes->SendLost(why, ending.cause);
  return ending;
}

// The value of --resume after `restarts` restarts. The checkpoints of the run itself come first.
std::string ResumeAfter(const TrainingOptions& training, int restarts) {
  return restarts > 0 && LatestCheckpoint(training.trainer.output) ? "auto" : training.resume;
}

}  // namespace

void RunRankProcesses(const FrontOptions& options, const std::function<bool()>& stop,
                      Progress& progress) {
  WarnWithoutSecret(options.launch);
  for (int restarts = 0;; ++restarts) {
    std::string resume = ResumeAfter(options.training, restarts);
    std::unique_ptr<NodeGroup> nodes;
    if (options.launch.nodes > 1) {
      nodes = Meet(options, resume, restarts > 0, stop);
      resume = nodes->job();
    }
    const Ending ending = RunAttempt(options, resume, std::move(nodes), stop);
    if (!ending.failed) return;
    if (ending.final) throw Error(ErrorKind::kInvalid, ending.why);
    if (restarts >= options.max_restarts || stop()) {
      throw Error(ErrorKind::kPeer, ending.why,
                  options.max_restarts > 0
                      ? fmt::format("the run was restarted {} times (--max-restarts {})", restarts,
                                    options.max_restarts)
                      : "the same command continues from the last checkpoint; --max-restarts does "
                        "so without it");
    }
    const auto last = LatestCheckpoint(options.training.trainer.output);
    progress.Say(fmt::format("{}; restart {} of {} (--max-restarts), {}", ending.why, restarts + 1,
                             options.max_restarts,
                             last ? "from " + last->string() : "from the beginning"));
  }
}

int RunChildRank(const TrainingOptions& options, RankSpec spec, Progress& progress) {
  const auto failed = [&](const std::exception& error) {
    spec.arena->Abort(fmt::format("rank {} failed: {}", spec.rank, error.what()));
  };
  try {
    const int per_node = spec.network ? spec.network->ranks_per_node : spec.world;
    if (spec.network) {
      ConnectTcpRanks(*spec.arena, spec.rank, std::move(spec.listener), *spec.network,
                      options.timeout);
    }
    std::optional<ControlSocket> control;
    if (spec.rank % per_node == 0) control = ControlSocket::Connect(spec.control_endpoint);
    bool stops = false;
    const auto stop = [&] {
      stops = stops || (control && control->Receive(0ms).has_value());
      return stops;
    };
    RunTrainingRank(options, spec.rank, spec.arena, stop, progress);
    return 0;
  } catch (const SaveError& error) {
    failed(error);
    return kInputError;
  } catch (const Error& error) {
    failed(error);
    // A missing file or port may be there after a restart.
    return error.kind() == ErrorKind::kInvalid ? kInputError : 1;
  } catch (const std::exception& error) {
    failed(error);
    return 1;
  }
}

namespace {

// MPI_Init cannot be interrupted, so the process ends.
[[noreturn]] void AbandonStart(const std::string& why) {
  std::fputs(fmt::format("switchyard: {}\n", why.empty() ? "stopped in MPI_Init" : why).c_str(),
             stderr);
  _exit(1);
}

// Connects this rank to all others. Returns the value of --resume, which rank 0 decides.
std::string Connect(const FrontOptions& options, SharedArena& arena,
                    std::unique_ptr<MpiSession>* mpi, const std::function<bool()>& stop) {
  const Launch& launch = options.launch;
  const auto stopped = [] {
    return Error(ErrorKind::kPeer, "the run was stopped before all ranks had joined");
  };
  if (launch.address) {
    WarnWithoutSecret(launch);
    const auto nodes = Meet(options, options.training.resume, /*restart=*/false, stop);
    NodeNetwork& network = nodes->network();
    if (!ConnectTcpRanks(arena, launch.node, std::move(network.listeners[0]), network.world,
                         options.training.timeout, stop))
      throw stopped();
    return nodes->job();
  }
  *mpi = MpiSession::Start(
      *launch.launched,
      {.timeout = options.training.timeout, .give_up = stop, .abandon = AbandonStart});
  const auto decision = (*mpi)->Agree(EncodeStatement(options.statement),
                                      [&](const std::vector<std::string>& statements) {
                                        return DecideJob(statements, options.training.resume);
                                      });
  if (!decision) throw stopped();
  std::string resume = DecodeJob(*decision);
  (*mpi)->Attach(arena);
  return resume;
}

}  // namespace

TrainingEnd RunLaunchedRank(const FrontOptions& options, const std::function<bool()>& stop,
                            Progress& progress) {
  std::unique_ptr<MpiSession> mpi;  // ends after the arena's connections
  const auto arena = SharedArena::Create(RanksOf(options), ArenaBytesPerRank(options.training));
  TrainingOptions training = options.training;
  training.resume = Connect(options, *arena, &mpi, stop);
  try {
    return RunTrainingRank(training, options.launch.node, arena, stop, progress);
  } catch (const std::exception& error) {
    arena->Abort(fmt::format("rank {} failed: {}", options.launch.node, error.what()));
    throw;
  }
}

}  // namespace switchyard::train
