// Launch plan of a process: its ranks, and the other nodes of the engine.
#pragma once

#include <optional>
#include <string>

#include "comm/host/launcher.h"
#include "comm/net/tcp.h"
#include "engine/config.h"
#include "server/args/args.h"

namespace switchyard {

// A node is either a host with tp / nnodes ranks, started with --nnodes, or a single rank, started
// by mpirun or srun. Node 0 serves HTTP. Plain value.
struct Launch {
  int nodes = 1;
  int node = 0;
  int ranks_per_node = 1;
  int ranks_of_host = 1;                 // ranks that share this host's memory and cores, if known
  std::optional<LaunchedRank> launched;  // set if a launcher started this node as one rank
  std::optional<HostPort> address;       // TCP address of node 0; absent: MPI, or a single node
  std::string secret;  // content of --dist-secret-file; empty: nodes are not authenticated
  // Whether the nodes join again after a rank or node has ended (--enable-elastic-ep).
  bool rejoins = false;

  bool alone() const { return nodes == 1; }
  // Whether the ranks of a host map one arena (RankPlaces).
  bool shares_memory() const { return !launched; }
};

// Throws kInvalid with the names of inconsistent flags or environment variables, and of flags that
// do not work with this launch. --nnodes > 1 has priority over `launched`, since a launcher may
// start one `serve` per host. Every node calls it first, so that none waits for a node that has
// refused its flags.
Launch PlanLaunch(const ServerArgs& args, const std::optional<LaunchedRank>& launched);

// Error kInvalid if nodes shall rejoin (Launch::rejoins), but the plan is for GPUs.
void CheckRejoins(const Launch& launch, const EnginePlan& plan);

}  // namespace switchyard
