// Which ranks this process is to start, and with whom.
#pragma once

#include <optional>

#include "comm/host/launcher.h"
#include "comm/net/tcp.h"
#include "server/args/args.h"

namespace switchyard {

// A node is a host with tp / nnodes ranks, started by hand with --nnodes, or one rank, started by
// mpirun or srun. Node 0 answers HTTP. Plain value.
struct Launch {
  int nodes = 1;
  int node = 0;
  int ranks_per_node = 1;
  int ranks_of_host = 1;                 // that share this host's memory and cores, as far as known
  std::optional<LaunchedRank> launched;  // the node is a rank of this launcher
  std::optional<HostPort> address;       // where nodes meet over TCP; none: MPI, or one node

  bool alone() const { return nodes == 1; }
};

// Error kInvalid names the flags or the variables that do not fit. --nnodes comes before what a
// launcher says, which may well have started one `serve` on each host.
Launch PlanLaunch(const ServerArgs& args, const std::optional<LaunchedRank>& launched);

}  // namespace switchyard
