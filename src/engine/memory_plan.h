// The memory of an engine's ranks, computed with model/rank_memory.h.
#pragma once

#include <string>

#include "engine/config.h"
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

// A log line: "1.92 GiB: weights 1.20 (experts 0.90, ...), cache 0.50, ..."
std::string DescribeMemory(const EngineConfig& config, const EnginePlan& plan);

}  // namespace switchyard
