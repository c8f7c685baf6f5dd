// How many threads a rank computes with, and on which CPUs (--cpu-threads-per-rank, --cpu-bind).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "core/cpus.h"
#include "engine/config.h"

namespace switchyard {

// A rank's threads. Lives as long as its ThreadPool: what is taken is given back with it.
struct CpuBinding {
  int threads = 1;
  CpuList cpus;                    // [threads], one for each in order; empty: Linux chooses
  std::optional<TakenCpus> taken;  // `cpus`, so that other servers keep off them
};

// "0-3|4-7": the CPUs of each rank of this host. Error kInvalid where that is not so, or a rank has
// fewer than `threads_per_rank` (0: as many as it has); nothing for "auto" and "none".
std::vector<CpuList> ParseCpuBind(const std::string& text, int32_t threads_per_rank,
                                  int ranks_of_host);

// The flag's default: SGLang's SGLANG_CPU_OMP_THREADS_BIND, where "all" is auto, if it is set; else
// none where SGLANG_SET_CPU_AFFINITY is false. Error kInvalid where that is neither true nor false.
std::string CpuBindOfEnvironment();

// The binding of a rank that may run on `allowed` and shares them, as rank `index` of `count`, with
// ranks of its own engine: CPUs that no other server has taken, or none of its own where there are
// too few. `root`: as of ShareOfCpus.
CpuBinding BindToShare(const CpuList& allowed, int index, int count, int32_t threads_per_rank,
                       const std::filesystem::path& root = "/");

// The place of `self` among the entries of `keys` that equal its own, and how many these are.
struct PlaceAmongEqual {
  int index = 0, count = 0;
};
PlaceAmongEqual FindPlace(std::span<const uint64_t> keys, int self);

// What the calling rank is to compute with. Collective over `all` ranks: those of one host that may
// run on the same CPUs share them out, wherever the ranks were started.
CpuBinding BindRank(const EngineConfig& config, const EnginePlan& plan, Communicator& all);

}  // namespace switchyard
