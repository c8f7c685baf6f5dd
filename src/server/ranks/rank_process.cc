// `switchyard rank`.
#include "comm/device/tcp/tcp_ranks.h"
#include "comm/host/rank_processes.h"
#include "core/log.h"
#include "server/ranks/rank_host.h"
#include "server/serve.h"

namespace switchyard {

int RunRank(int argc, char** argv, std::shared_ptr<const MoeBackends> backends) {
  RankSpec spec = InheritRankSpec();
  RankJob job = DecodeRankSpec(spec.spec);
  job.config.backends = std::move(backends);
  const std::string title = Mesh(job.config.mesh, spec.rank).Title();
  SetProcessTitle(argc, argv, "switchyard::rank " + title);
  InitLog(job.config.log_level, title);
  if (spec.network) {
    const auto timeout =
        std::chrono::milliseconds(static_cast<int64_t>(job.config.dist_timeout_seconds * 1000));
    ConnectTcpRanks(*spec.arena, spec.rank, std::move(spec.listener), *spec.network, timeout);
  }
  RunRankLoop(job.config, job.plan, spec.rank, spec.arena,
              spec.rank == 0 ? LeaderIo(spec.control_endpoint) : RankLoopIo{});
  return 0;
}

}  // namespace switchyard
