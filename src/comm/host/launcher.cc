#include "comm/host/launcher.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/error.h"

namespace switchyard {
namespace {

struct Variables {
  const char *launcher, *rank, *world, *ranks_of_host;
};

// OpenMPI's variables have priority: under Slurm, mpirun passes on the variables of the step that
// runs its daemons. A batch script has SLURM_PROCID and SLURM_NTASKS although it is not a task;
// only a step has SLURM_STEP_NUM_TASKS.
constexpr std::array<Variables, 3> kLaunchers = {{
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", nullptr},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", nullptr},
}};

int ParseNumber(const char* name, std::string_view text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0) {
    throw Invalid("{}={} in the environment: want a number", name, text);
  }
  return value;
}

}  // namespace

std::optional<LaunchedRank> FindLauncher(const GetVariable& get) {
  for (const Variables& names : kLaunchers) {
    const char* rank = get(names.rank);
    const char* world = get(names.world);
    if (rank == nullptr || world == nullptr) continue;
    LaunchedRank place{.rank = ParseNumber(names.rank, rank),
                       .world = ParseNumber(names.world, world),
                       .launcher = names.launcher};
    if (place.world <= 1) return std::nullopt;
    if (place.rank >= place.world) {
      throw Invalid("{}={} in the environment: there are {} ranks", names.rank, rank, place.world);
    }
    const char* local = names.ranks_of_host != nullptr ? get(names.ranks_of_host) : nullptr;
    if (local != nullptr) place.ranks_of_host = ParseNumber(names.ranks_of_host, local);
    return place;
  }
  return std::nullopt;
}

std::optional<LaunchedRank> FindLauncher() {
  return FindLauncher([](const char* name) { return std::getenv(name); });
}

}  // namespace switchyard
