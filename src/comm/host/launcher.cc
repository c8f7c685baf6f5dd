#include "comm/host/launcher.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "comm/net/tcp.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr std::string_view kTorchrun = "torchrun";
constexpr const char* kTorchrunId = "TORCHELASTIC_RUN_ID";

struct Variables {
  const char *launcher, *rank, *world, *ranks_of_host;
};

// The variables of torchrun have the short names that other programs use too, so torchrun counts
// only with its run id. It has priority, since srun or mpirun may start one torchrun per host.
// OpenMPI's variables come next: under Slurm, mpirun passes on the variables of the step that runs
// its daemons. A batch script has SLURM_PROCID and SLURM_NTASKS although it is not a task;
// only a step has SLURM_STEP_NUM_TASKS.
constexpr std::array<Variables, 4> kLaunchers = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"},
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

// The address at which rank 0 of torchrun's processes can listen.
std::string TorchrunAddress(const GetVariable& get) {
  const char* host = get("MASTER_ADDR");
  const char* port = get("MASTER_PORT");
  if (host == nullptr || port == nullptr) return {};
  const char* agent = get("TORCHELASTIC_USE_AGENT_STORE");
  const bool taken = agent != nullptr && std::string_view(agent) == "True";
  return HostPort{host, ParseNumber("MASTER_PORT", port) + (taken ? 1 : 0)}.Text();
}

}  // namespace

std::optional<LaunchedRank> FindLauncher(const GetVariable& get) {
  for (const Variables& names : kLaunchers) {
    const char* rank = get(names.rank);
    const char* world = get(names.world);
    if (rank == nullptr || world == nullptr) continue;
    const bool torchrun = names.launcher == kTorchrun;
    if (torchrun && get(kTorchrunId) == nullptr) continue;
    LaunchedRank place{.rank = ParseNumber(names.rank, rank),
                       .world = ParseNumber(names.world, world),
                       .launcher = names.launcher,
                       .variable = torchrun ? kTorchrunId : names.rank};
    if (place.world <= 1) return std::nullopt;
    if (place.rank >= place.world) {
      throw Invalid("{}={} in the environment: there are {} ranks", names.rank, rank, place.world);
    }
    const char* local = names.ranks_of_host != nullptr ? get(names.ranks_of_host) : nullptr;
    if (local != nullptr) place.ranks_of_host = ParseNumber(names.ranks_of_host, local);
    if (torchrun) place.address = TorchrunAddress(get);
    return place;
  }
  return std::nullopt;
}

std::optional<LaunchedRank> FindLauncher() {
  return FindLauncher([](const char* name) { return std::getenv(name); });
}

void CheckNodeRank(int node_rank, const LaunchedRank& rank) {
  if (node_rank == 0 || node_rank == rank.rank) return;
  throw Error(ErrorKind::kInvalid,
              fmt::format("--node-rank {}: this process is rank {} of {} in the environment of {}",
                          node_rank, rank.rank, rank.world, rank.launcher),
              "leave it out, or start one process per host with --nnodes");
}

std::string HintOfProcesses(const LaunchedRank& rank, std::string_view command) {
  std::string hint = "to run several ranks per process, start one process per host with --nnodes";
  if (!rank.variable.empty()) {
    hint += fmt::format("; to start a program that is no rank of {}: env -u {} {} …", rank.launcher,
                        rank.variable, command);
  }
  return hint;
}

}  // namespace switchyard
