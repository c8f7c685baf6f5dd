#include "server/ranks/follower.h"

#include <mutex>
#include <optional>
#include <thread>

#include "core/log.h"
#include "server/ranks/membership.h"
#include "server/ranks/served_weights.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// How long after an end its cause may still become known.
constexpr auto kLastWords = 300ms;

// How the engine ends, as the first to know says it; the first to know the cause, where there is
// one.
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

// False when a second signal says not to wait any longer.
bool WaitForOutcome(const Outcome& outcome, const StopSignals& signals) {
  bool asked = false;
  while (!outcome.ended() && !outcome.lost()) {
    if (!signals.Wait(100ms)) continue;
    if (asked) return false;
    asked = true;
    LOG_INFO("this node leaves when node 0 does; a second signal ends it now");
  }
  if (outcome.lost()) std::this_thread::sleep_for(kLastWords);
  return true;
}

}  // namespace

int RunFollower(const ServerArgs& args, const Launch& launch, const StopSignals& signals) {
  const auto weights = CheckWeights(args, [&] { return signals.Wait(0ms) != 0; });
  if (!weights) return 0;
  Outcome outcome;
  std::optional<Membership> membership =
      Join(launch, args.engine, [&] { return signals.Wait(0ms) != 0; });
  if (!membership) return 0;
  RankJob job = DecodeRankSpec(membership->job, args.engine.model_path);
  job.config.backends = args.engine.backends;
  job.config.base_gpu_id = args.engine.base_gpu_id;  // each host has its own
  job.config.gpu_id_step = args.engine.gpu_id_step;
  job.config.cpu_bind = args.engine.cpu_bind;
  if (launch.launched) InitLog(job.config.log_level, Mesh(job.config.mesh, launch.node).Title());
  if (membership->mpi) {  // whose launcher ends all ranks when one is lost
    RunRankLoop(job.config, job.plan, launch.node, ArenaOfLaunchedRank(launch, *membership, job),
                {});
    return 0;
  }
  NodeGroup& nodes = *membership->nodes;
  const auto host =
      StartRanks(launch, *membership, job, {},
                 NamingChangedFiles(*weights, [&](const std::string& how, bool cause) {
                   nodes.SayLost(how, cause);
                   outcome.Lose(how, cause);
                 }));
  host->ExpectEnd();  // ranks end in good order only on request
  nodes.Watch({.on_lost = [&](const std::string& why, bool cause) { outcome.Lose(why, cause); },
               .on_end = [&] { outcome.End(); }});
  const bool waited = WaitForOutcome(outcome, signals);
  if (const auto why = outcome.lost()) {
    LOG_ERROR("{}", *why);
    return 1;
  }
  if (!waited) {
    nodes.SayLost("the node was stopped by a signal", /*cause=*/true);
    return 1;
  }
  if (!host->WaitEnded(10s)) LOG_WARNING("some ranks did not leave by themselves and were killed");
  LOG_INFO("node 0 has ended the engine: goodbye");
  return 0;
}

}  // namespace switchyard
