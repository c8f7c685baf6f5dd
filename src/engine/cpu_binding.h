// The number of compute threads of a rank and their CPUs (--cpu-threads-per-rank, --cpu-bind).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/cpus.h"
#include "engine/config.h"

namespace switchyard {

// The threads of a rank and their CPUs. The object must live as long as the rank's ThreadPool. Its
// destructor releases the CPUs.
struct CpuBinding {
  int threads = 1;
  CpuList cpus;                         // [threads], thread i on cpus[i]; empty: Linux chooses
  std::optional<CpuReservation> taken;  // reserves `cpus` against other servers
};

// Parses "0-3|4-7", the CPUs of each rank of this host. Error kInvalid for any other format, or if
// a rank has fewer than `threads_per_rank` CPUs (0: any number suffices). Returns an empty list for
// "auto" and "none".
std::vector<CpuList> ParseCpuBind(const std::string& text, int32_t threads_per_rank,
                                  int ranks_of_host);

// The default of --cpu-bind, from two variables of SGLang. SGLANG_CPU_OMP_THREADS_BIND has
// priority, and its value "all" means auto. Otherwise the default is none if
// SGLANG_SET_CPU_AFFINITY is false, and auto if not. Error kInvalid if SGLANG_SET_CPU_AFFINITY is
// neither true nor false.
std::string CpuBindOfEnvironment();

// The binding of rank `index` if `count` ranks of one engine partition the CPUs `allowed`. Chooses
// CPUs that no other server has reserved; pins no threads if too few CPUs are left. `root`: see
// PartitionCpus.
CpuBinding BindToShare(const CpuList& allowed, int index, int count, int32_t threads_per_rank,
                       const std::filesystem::path& root = "/");

// Position of entry `self` among the entries of `keys` that are equal to keys[self], and the number
// of such entries.
struct PlaceAmongEqual {
  int index = 0, count = 0;
};
PlaceAmongEqual FindPlace(std::span<const uint64_t> keys, int self);

// Chooses the calling rank's threads and CPUs. Collective over `all` ranks. Ranks of one host with
// the same affinity mask partition its CPUs, wherever the ranks were started.
CpuBinding BindRank(const EngineConfig& config, const EnginePlan& plan, Communicator& all);

}  // namespace switchyard
