#include "train/hosts/launch.h"

#include "comm/host/secret_file.h"
#include "core/error.h"

namespace switchyard::train {
namespace {

Launch FromLauncher(const LaunchFlags& flags, int ranks, const LaunchedRank& launched) {
  if (launched.world != ranks) {
    throw Error(ErrorKind::kInvalid,
                fmt::format("{} started {} processes, but --tp, --dp and --pp make {} ranks: each "
                            "process runs one rank",
                            launched.launcher, launched.world, ranks),
                HintOfProcesses(launched, "switchyard train"));
  }
  CheckNodeRank(flags.node_rank, launched);
  if (flags.max_restarts > 0) {
    throw Error(ErrorKind::kInvalid,
                fmt::format("--max-restarts: the ranks are processes of {}, which alone can start "
                            "them again",
                            launched.launcher),
                "the same command continues from the last checkpoint");
  }
  Launch launch{
      .ranks = Launch::Ranks::kThis, .nodes = ranks, .node = launched.rank, .launched = launched};
  if (!flags.dist_init_addr.empty()) {
    launch.address = HostPort::Parse("--dist-init-addr", flags.dist_init_addr);
  } else if (!launched.address.empty()) {
    launch.address = HostPort::Parse(launched.launcher, launched.address);
  }
  return launch;
}

Launch FromFlags(const LaunchFlags& flags, int ranks) {
  if (flags.nnodes < 1) throw Invalid("--nnodes {}: want 1 or more", flags.nnodes);
  if (flags.node_rank < 0 || flags.node_rank >= flags.nnodes) {
    throw Invalid("--node-rank {}: want 0 to {} for --nnodes {}", flags.node_rank, flags.nnodes - 1,
                  flags.nnodes);
  }
  if (ranks % flags.nnodes != 0) {
    throw Invalid("--nnodes {}: does not divide the {} ranks of --tp, --dp and --pp", flags.nnodes,
                  ranks);
  }
  Launch launch{
      .nodes = flags.nnodes, .node = flags.node_rank, .ranks_per_node = ranks / flags.nnodes};
  const bool gpus = flags.gpus && ranks > 1;
  if (flags.nnodes > 1 || flags.max_restarts > 0 || gpus) launch.ranks = Launch::Ranks::kProcesses;
  if (flags.nnodes == 1) return launch;
  if (flags.dist_init_addr.empty()) {
    throw Invalid("--nnodes {} requires --dist-init-addr HOST:PORT, an address of node 0",
                  flags.nnodes);
  }
  launch.address = HostPort::Parse("--dist-init-addr", flags.dist_init_addr);
  return launch;
}

}  // namespace

Launch PlanLaunch(const LaunchFlags& flags, int ranks,
                  const std::optional<LaunchedRank>& launched) {
  if (flags.max_restarts < 0)
    throw Invalid("--max-restarts {}: want 0 or more", flags.max_restarts);
  if (flags.gpus && flags.nnodes > 1)
    throw Invalid("--device cuda: trains on the GPUs of one host; want --nnodes 1, not {}",
                  flags.nnodes);
  if (flags.gpus && launched && ranks > 1)
    throw Error(ErrorKind::kInvalid,
                fmt::format("--device cuda: this program starts the ranks of all GPUs itself, but "
                            "{} started {} processes",
                            launched->launcher, launched->world),
                HintOfProcesses(*launched, "switchyard train"));
  Launch launch = flags.nnodes == 1 && launched ? FromLauncher(flags, ranks, *launched)
                                                : FromFlags(flags, ranks);
  if (launch.nodes == 1) {
    for (const auto& [flag, value] : {std::pair{"--dist-init-addr", flags.dist_init_addr},
                                      std::pair{"--dist-secret-file", flags.dist_secret_file}}) {
      if (!value.empty())
        throw Invalid("{} {}: the run has a single host; --nnodes sets more", flag, value);
    }
  }
  if (flags.early_sums && launch.ranks != Launch::Ranks::kThreads) {
    throw Invalid(
        "--early-sums: needs ranks that are threads of one process, on one host without "
        "--max-restarts; gradients are then summed at the end of the step");
  }
  if (flags.rank_stall_timeout && launch.ranks != Launch::Ranks::kProcesses) {
    throw Invalid(
        "--rank-stall-timeout: watches ranks that this program has started as processes; want "
        "--nnodes, --max-restarts or several GPUs");
  }
  if (flags.dist_secret_file.empty()) return launch;
  if (!launch.address) {
    throw Error(ErrorKind::kInvalid, "--dist-secret-file: ranks over MPI cannot be authenticated",
                "set --dist-init-addr HOST:PORT to connect the ranks over TCP");
  }
  launch.secret = ReadSecretFile(flags.dist_secret_file);
  return launch;
}

}  // namespace switchyard::train
