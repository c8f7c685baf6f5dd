#include "server/ranks/launch.h"

#include "comm/host/secret_file.h"
#include "core/error.h"

namespace switchyard {
namespace {

Launch FromFlags(const ServerArgs& args) {
  const int ranks = args.engine.mesh.world();
  if (args.node_rank >= args.nnodes) {
    throw Invalid("--node-rank {}: want 0 to {} for --nnodes {}", args.node_rank, args.nnodes - 1,
                  args.nnodes);
  }
  if (args.nnodes > 1 && args.engine.mesh.pp > 1) {
    throw Invalid("--nnodes {}: --pp-size {} is supported on one host only; want --nnodes 1",
                  args.nnodes, args.engine.mesh.pp);
  }
  if (ranks % args.nnodes != 0) {
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
  if (args.engine.mesh.pp > 1) {
    throw Invalid("--pp-size {}: ranks that a launcher ({}) starts cannot be pipeline stages",
                  args.engine.mesh.pp, launched.launcher);
  }
  if (launched.world != ranks) {
    throw Error(
        ErrorKind::kInvalid,
        fmt::format("{} started {} processes, but --tp-size is {}: each process runs one rank",
                    launched.launcher, launched.world, ranks),
        "to run several ranks per process, start one process per host with --nnodes");
  }
  Launch launch{.nodes = launched.world,
                .node = launched.rank,
                .ranks_per_node = 1,
                .ranks_of_host = launched.ranks_of_host > 0 ? launched.ranks_of_host : ranks,
                .launched = launched};
  if (!args.dist_init_addr.empty()) {
    launch.address = HostPort::Parse("--dist-init-addr", args.dist_init_addr);
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

}  // namespace

Launch PlanLaunch(const ServerArgs& args, const std::optional<LaunchedRank>& launched) {
  const MeshShape& mesh = args.engine.mesh;
  if (mesh.tp < 1) throw Invalid("--tp-size {}: want at least 1", mesh.tp);
  if (mesh.pp < 1) throw Invalid("--pp-size {}: want at least 1", mesh.pp);
  Mesh({.tp = mesh.tp, .pp = mesh.pp}, 0);  // throws if there are too many ranks
  Launch launch = args.nnodes == 1 && launched ? FromLauncher(args, *launched) : FromFlags(args);
  if (!args.dist_secret_file.empty()) launch.secret = ReadSecretFile(args.dist_secret_file);
  CheckSecret(args, launch);
  return launch;
}

}  // namespace switchyard
