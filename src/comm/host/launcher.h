// Ranks that mpirun or srun starts.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace switchyard {

struct LaunchedRank {
  int rank = 0;
  int world = 1;
  int ranks_of_host = 0;  // 0: the launcher does not say
  std::string launcher;   // "mpirun", "srun"
};

// This process's place among those that a launcher started together, from the variables of OpenMPI,
// PMI or a Slurm step; nothing where there are none, or it is alone. Error kInvalid names a
// malformed one.
using GetVariable = std::function<const char*(const char*)>;
std::optional<LaunchedRank> FindLauncher(const GetVariable& get);
std::optional<LaunchedRank> FindLauncher();  // in the environment

}  // namespace switchyard
