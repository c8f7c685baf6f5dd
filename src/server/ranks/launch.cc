#include "server/ranks/launch.h"

#include "comm/host/secret_file.h"
#include "core/error.h"
#include "engine/checks/checks.h"
#include "engine/checks/features.h"

namespace switchyard {
namespace {

Launch FromFlags(const ServerArgs& args) {
  const int ranks = args.engine.mesh.world();
  if (args.node_rank >= args.nnodes) {
    throw Invalid("--node-rank {}: want 0 to {} for --nnodes {}", args.node_rank, args.nnodes - 1,
                  args.nnodes);
  }
  if (ranks % args.nnodes != 0) {
    if (args.engine.mesh.pp > 1)
      throw Invalid(
          "--nnodes {} does not divide the {} ranks of --pp-size {} and --tp-size {}: each node "
          "runs pp x tp / nnodes ranks",
          args.nnodes, ranks, args.engine.mesh.pp, args.engine.mesh.tp);
    throw Invalid("--nnodes {} does not divide --tp-size {}: each node runs tp / nnodes ranks",
                  args.nnodes, ranks);
  }
  Launch launch{.nodes = args.nnodes,
                .node = args.node_rank,
                .ranks_per_node = ranks / args.nnodes,
                .ranks_of_host = ranks / args.nnodes};
  if (args.nnodes == 1) return launch;
  if (args.dist_init_addr.empty()) {
    throw Invalid("--nnodes {} requires --dist-init-addr HOST:PORT, an address of node 0",
                  args.nnodes);
  }
  launch.address = HostPort::Parse("--dist-init-addr", args.dist_init_addr);
  launch.rejoins = args.enable_elastic_ep;
  return launch;
}

Launch FromLauncher(const ServerArgs& args, const LaunchedRank& launched) {
  const int ranks = args.engine.mesh.world();
  if (launched.world != ranks) {
    throw Error(
        ErrorKind::kInvalid,
        fmt::format("{} started {} processes, but {} is {}: each process runs one rank",
                    launched.launcher, launched.world,
                    args.engine.mesh.pp > 1 ? "--pp-size times --tp-size" : "--tp-size", ranks),
        HintOfProcesses(launched, "switchyard serve"));
  }
  CheckNodeRank(args.node_rank, launched);
  Launch launch{.nodes = launched.world,
                .node = launched.rank,
                .ranks_per_node = 1,
                .ranks_of_host = launched.ranks_of_host > 0 ? launched.ranks_of_host : ranks,
                .launched = launched};
  if (!args.dist_init_addr.empty()) {
    launch.address = HostPort::Parse("--dist-init-addr", args.dist_init_addr);
  } else if (!launched.address.empty()) {
    launch.address = HostPort::Parse(launched.launcher, launched.address);
  }
  return launch;
}

void CheckSecret(const ServerArgs& args, const Launch& launch) {
  if (launch.alone()) return;
  const bool over_mpi = !launch.address;
  if (over_mpi && (args.require_dist_secret || !launch.secret.empty())) {
    throw Error(ErrorKind::kInvalid,
                fmt::format("{}: ranks over MPI cannot be authenticated",
                            launch.secret.empty() ? "--require-dist-secret" : "--dist-secret-file"),
                "set --dist-init-addr HOST:PORT to connect the ranks over TCP");
  }
  if (!args.require_dist_secret || !launch.secret.empty()) return;
  throw Error(ErrorKind::kInvalid,
              fmt::format("--require-dist-secret: the {} nodes have no secret", launch.nodes),
              "pass --dist-secret-file FILE with the same secret on all nodes");
}

// The flags that restart ranks.
void CheckRestarts(const ServerArgs& args, const Launch& launch) {
  if (args.restart_flags.empty()) return;
  const std::string& flag = args.restart_flags.front();
  if (args.disable_elastic_ep)
    throw Invalid("{} and --disable-elastic-ep exclude each other", flag);
  if (launch.launched)
    throw Invalid("{}: ranks started by a launcher (such as mpirun) cannot be restarted", flag);
  if (!launch.alone() && !launch.rejoins)
    throw Invalid("{}: with several nodes, only --enable-elastic-ep restarts ranks", flag);
  if (args.engine.mesh.pp > 1)
    throw Invalid("{}: with --pp-size {}, ranks cannot be restarted", flag, args.engine.mesh.pp);
  if (args.engine.spare_ranks > 0 && !launch.alone())
    throw Invalid("--spare-ranks {}: with several nodes, all ranks start again",
                  args.engine.spare_ranks);
}

// MakePlan repeats this check with the model, on node 0.
void CheckPlaces(const ServerArgs& args, const Launch& launch) {
  CheckFeatures(args.engine, ModelConfig(),
                {.several_hosts = launch.ranks_of_host < args.engine.mesh.world(),
                 .shared_memory = launch.shares_memory()});
}

}  // namespace

Launch PlanLaunch(const ServerArgs& args, const std::optional<LaunchedRank>& launched) {
  const MeshShape& mesh = args.engine.mesh;
  if (mesh.tp < 1) throw Invalid("--tp-size {}: want at least 1", mesh.tp);
  if (mesh.pp < 1) throw Invalid("--pp-size {}: want at least 1", mesh.pp);
  Mesh({.tp = mesh.tp, .pp = mesh.pp}, 0);  // throws if there are too many ranks
  CheckFlags(args.engine);
  Launch launch = args.nnodes == 1 && launched ? FromLauncher(args, *launched) : FromFlags(args);
  if (!args.dist_secret_file.empty()) launch.secret = ReadSecretFile(args.dist_secret_file);
  CheckSecret(args, launch);
  CheckPlaces(args, launch);
  CheckRestarts(args, launch);
  return launch;
}

void CheckRejoins(const Launch& launch, const EnginePlan& plan) {
  if (launch.rejoins && plan.cuda)
    throw Invalid("--enable-elastic-ep: ranks of several nodes are restarted on CPUs only");
}

}  // namespace switchyard
