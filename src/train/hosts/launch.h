// How a training run is launched: where its ranks are, and whether they are threads or processes.
#pragma once

#include <optional>
#include <string>

#include "comm/host/launcher.h"
#include "comm/net/tcp.h"

namespace switchyard::train {

// The flags that decide it.
struct LaunchFlags {
  int nnodes = 1, node_rank = 0;    // --nnodes, --node-rank
  std::string dist_init_addr;       // --dist-init-addr
  std::string dist_secret_file;     // --dist-secret-file
  int max_restarts = 0;             // --max-restarts
  bool early_sums = false;          // --early-sums
  bool rank_stall_timeout = false;  // whether --rank-stall-timeout is given
  bool gpus = false;                // --device cuda
};

// A node is a host, started with --nnodes, or a single rank, started by a launcher such as mpirun,
// srun or torchrun. Plain value.
struct Launch {
  enum class Ranks {
    kThreads,    // of this process: on one host, without restarts. The corpus is in memory once
    kProcesses,  // children of this process, which restarts them (hosts/front.h). Also ranks on
                 // several GPUs
    kThis,       // this process is one rank
  };
  Ranks ranks = Ranks::kThreads;
  int nodes = 1, node = 0;
  int ranks_per_node = 1;
  std::optional<LaunchedRank> launched;  // set with kThis
  std::optional<HostPort> address;       // of node 0; absent: a single node, or MPI
  std::string secret;                    // empty: nodes are not authenticated

  bool leads() const { return node == 0; }
};

// `ranks`: those of the layout. --nnodes above 1 has priority over `launched`, since a launcher may
// start one program per host. Throws kInvalid that names the flag or the launcher: a number of
// nodes or processes that does not fit the ranks, a missing address, or flags that this launch
// cannot honour.
Launch PlanLaunch(const LaunchFlags& flags, int ranks, const std::optional<LaunchedRank>& launched);

}  // namespace switchyard::train
