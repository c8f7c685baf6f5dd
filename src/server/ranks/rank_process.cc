// `switchyard rank`: main function of a rank process, and of a spare.
#include <unistd.h>

#include <exception>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "comm/device/tcp/tcp_ranks.h"
#include "comm/host/heartbeat_watch.h"
#include "comm/host/rank_processes.h"
#include "core/duration.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/phase_times.h"
#include "engine/kept_weights.h"
#include "kernels/gpus.h"
#include "server/ranks/rank_host.h"
#include "server/serve.h"

namespace switchyard {
namespace {

// Adds a check of the parent's heartbeat to the leader's receive function. Without it, the ranks
// would wait forever if the server process is stopped.
RankLoopIo WatchParent(RankLoopIo io, std::shared_ptr<const SharedArena> arena, double timeout) {
  constexpr std::chrono::milliseconds kMaxGap{2000};  // an idle leader polls once a second
  io.reconnect = [reconnect = std::move(io.reconnect), arena, timeout](const std::string& next) {
    return WatchParent(reconnect(next), arena, timeout);
  };
  if (!io.receive) return io;  // not the leader
  io.receive = [receive = std::move(io.receive), arena = std::move(arena), timeout,
                silence = Silence(kMaxGap)](std::chrono::milliseconds wait) mutable {
    silence.Sample(arena->parent_beats(), Silence::Clock::now());
    if (silence.length() >= std::chrono::duration<double>(timeout))
      throw Error(ErrorKind::kPeer,
                  fmt::format("the server process (pid {}) sent no heartbeat for {:.0f} s "
                              "(--watchdog-timeout)",
                              getppid(), std::chrono::duration<double>(silence.length()).count()));
    return receive(wait);
  };
  return io;
}

std::string TitleOf(const RankJob& job, const RankSpec& spec) {
  return Mesh(job.config.mesh, spec.rank).Title();
}

int GpuOf(const RankJob& job, int rank) {
  return MakeModelOptions(job.config, job.plan, rank).gpu->index;
}

void LeaveGpus(const std::set<int>& gpus) {
  PhaseTimes times;
  LOG_INFO("the former spare process leaves the GPUs of other ranks: {}", Joined(gpus, ", "));
  try {
    for (const int gpu : gpus) LeaveGpu(gpu);
  } catch (const std::exception& error) {
    LOG_WARNING("the process keeps memory of GPUs of other ranks: {}", error.what());
    return;
  }
  times.End("GPUs of other ranks");
  LOG_INFO("the former spare process has left GPUs after {}", times.Describe());
}

// Loads what all ranks need, and waits until a rank's place is free. Then sets the rank and the
// endpoint of `spec`. On GPUs, starts CUDA on the GPUs of all ranks; the weights stay on the GPU of
// the rank that ends. Then `others` are the GPUs to leave.
KeptWeights BecomeRank(const RankJob& job, RankSpec* spec, std::set<int>* others) {
  SharedArena& arena = *spec->arena;
  KeptWeights kept;
  const auto count_step = [&arena, slot = spec->spare] { arena.CountSpareStep(slot); };
  std::set<int> gpus;
  for (int rank = 0; job.plan.cuda && rank < spec->world; ++rank) gpus.insert(GpuOf(job, rank));
  for (const int gpu : gpus) {
    StartGpu(gpu);
    count_step();
  }
  if (!job.plan.cuda) kept.LoadCommon(job.config, job.plan, count_step);
  spec->rank = arena.AwaitPlace(spec->spare);
  spec->control_endpoint = arena.endpoint();
  if (job.plan.cuda) {
    const int own = GpuOf(job, spec->rank);
    StartGpu(own);  // this thread uses no other GPU from now on
    gpus.erase(own);
  }
  *others = std::move(gpus);
  return kept;
}

}  // namespace

int RunRank(int argc, char** argv, std::shared_ptr<const MoeBackends> backends) {
  RankSpec spec = InheritRankSpec();
  RankJob job = DecodeRankSpec(spec.spec);
  job.config.backends = std::move(backends);
  KeptWeights kept;
  std::set<int> others;
  if (spec.spare < 0) {
    SetProcessTitle(argc, argv, "switchyard::rank " + TitleOf(job, spec));
  } else {
    const auto memory = SetProcessTitle(argc, argv, "switchyard::spare");
    InitLog(job.config.log_level, "spare");
    kept = BecomeRank(job, &spec, &others);
    SetProcessTitle(memory, "switchyard::rank " + TitleOf(job, spec));
  }
  InitLog(job.config.log_level, TitleOf(job, spec));
  if (spec.network) {
    const auto timeout = Milliseconds(job.config.dist_timeout_seconds);
    ConnectTcpRanks(*spec.arena, spec.rank, std::move(spec.listener), *spec.network, timeout);
  }
  if (!spec.kept.empty()) {
    const uint64_t key = HashOf(fmt::format("{}|{}", spec.rank, spec.spec));
    KeptDescriptors& own = spec.kept[spec.spare < 0 ? 0 : spec.rank];
    kept.gpu = KeptGpuMemory::Open(job.config, job.plan, spec.rank, key, std::move(own));
    spec.kept.clear();
  }
  if (spec.last_epoch != 0) {
    PhaseTimes times;
    spec.control_endpoint = spec.arena->WaitForEpoch(spec.rank, spec.last_epoch);
    times.End("other ranks");
    LOG_INFO("this process waited for its epoch for {}", times.Describe());
  }
  const bool leads = spec.arena->ActiveRanks().front() == spec.rank;
  RankLoopIo io = WatchParent(LeaderIo(leads ? spec.control_endpoint : std::string()), spec.arena,
                              job.config.watchdog_timeout_seconds);
  // A GPU is left between two epochs, because its reset would end the access to memory of its rank.
  // In the pause in which the spare takes a place it would add 0.4 s; in the next one it runs
  // beside the end of the epoch.
  if (!others.empty()) io.after_first_epoch = [others] { LeaveGpus(others); };
  RunRankLoop(job.config, job.plan, spec.rank, spec.arena, io, std::move(kept));
  return 0;
}

}  // namespace switchyard
