// Detects ranks started by mpirun, srun or torchrun.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard {

struct LaunchedRank {
  int rank = 0;
  int world = 1;
  int ranks_of_host = 0;  // 0: the launcher does not report it
  std::string launcher;   // "mpirun", "srun", "torchrun"
  std::string address;    // HOST:PORT on the host of rank 0; empty: the launcher names none
  std::string variable;   // environment variable without which this launcher is not detected
};

// This process's rank among those started by a launcher, from the variables of torchrun, OpenMPI,
// PMI or a Slurm step. Nullopt if there are no such variables, or only one process. Error kInvalid
// names a malformed variable. The address is that of torchrun: MASTER_ADDR:MASTER_PORT, with the
// next port if torchrun's own store listens at MASTER_PORT.
using GetVariable = std::function<const char*(const char*)>;
std::optional<LaunchedRank> FindLauncher(const GetVariable& get);
std::optional<LaunchedRank> FindLauncher();  // reads the environment

// Error kInvalid unless `node_rank` (--node-rank) is the number of this rank, or 0, its default.
void CheckNodeRank(int node_rank, const LaunchedRank& rank);

// The hint of an error about the number of processes. It says how to start `command` (such as
// "switchyard serve") from a process of the launcher as a program of its own, not as a rank.
std::string HintOfProcesses(const LaunchedRank& rank, std::string_view command);

}  // namespace switchyard
