// The memory of an engine's ranks, computed with model/rank_memory.h.
#pragma once

#include <string>

#include "engine/config.h"
#include "model/rank_memory.h"

namespace switchyard {

// The memory of rank 0. Requires the plan's dtypes, context length, requests and batch tokens.
RankMemory PlanRankMemory(const EngineConfig& config, const EnginePlan& plan);

// Whether every rank has its own copy of its weights. Otherwise ranks map the same files, and
// weights that several ranks of a host read are in memory once.
bool CopiesWeights(const EngineConfig& config, const EnginePlan& plan);

// A log line: "1.92 GiB: weights 1.20 (experts 0.90, ...), cache 0.50, ..."
std::string DescribeMemory(const EngineConfig& config, const EnginePlan& plan);

}  // namespace switchyard
