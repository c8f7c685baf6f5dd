// The memory of an engine's ranks, computed with model/rank_memory.h.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config.h"
#include "engine/host_memory.h"
#include "model/rank_memory.h"

namespace switchyard {

// The memory of the first rank of the plan's model: of a pipeline stage for the plan of
// StagePlanOf. Requires the plan's dtypes, context length, requests and batch tokens.
RankMemory PlanRankMemory(const EngineConfig& config, const EnginePlan& plan);

// Bytes of the weights of `count` ranks of a stage. `rank`: the memory of its first rank. With
// unequal ranks there is one stage, on one host.
double WeightsOfRanks(const EngineConfig& config, const EnginePlan& plan, const RankMemory& rank,
                      int count);

// Whether every rank has its own copy of its weights. Otherwise ranks map the same files, and
// weights that several ranks of a host read are in memory once.
bool CopiesWeights(const EngineConfig& config, const EnginePlan& plan);

// GPU memory of a process that has started CUDA and loaded the kernels. An upper limit.
constexpr int64_t kGpuContextBytes = int64_t{600} << 20;

// Bytes that a plan may use of `memory`; negative if none are left. --mem-fraction-static leaves a
// part of the memory for unplanned allocations. On a GPU, these are scratch of kernels, graphs and
// buffers of NCCL. This part is reserved in addition to the memory of other processes, and to
// kGpuContextBytes of each process that starts later: of spares, twice with several ranks, and with
// --disaggregation-mode of the server process. On a host, other processes may use this part.
int64_t MemoryBudget(const HostMemory& memory, const EngineConfig& config, bool cuda);

// Bytes of the host's memory that experts on CPUs beside GPUs need, of all ranks. GPUs pin their
// part of the arena, so all of it counts.
struct HostExpertBytes {
  double weights = 0;
  double rows = 0;     // experts' rows and results of products
  double arena = 0;    // exchange buffers
  double streams = 0;  // pinned copies of all experts (--stream-experts)
  double total() const { return weights + rows + arena + streams; }
};

// `plan`: with EnginePlan::host_experts, dtypes, sizes of a pass, and the bytes of the arena.
HostExpertBytes PlanHostExperts(const EngineConfig& config, const EnginePlan& plan);

// A log line: "1.92 GiB: weights 1.20 (experts 0.90, ...), cache 0.50, ..."
std::string DescribeMemory(const EngineConfig& config, const EnginePlan& plan);

}  // namespace switchyard
