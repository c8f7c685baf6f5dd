// Planners by name.
#pragma once

#include <optional>
#include <string>

#include "eplb/types.h"
#include "eplb/yard.h"

namespace switchyard {

// `--eplb-algorithm`; names but `yard` are SGLang's.
enum class EplbAlgorithm {
  kAuto,                  // yard
  kDeepSeek,              // deepseek.h, experts over all ranks
  kDeepSeekHierarchical,  // deepseek.h, groups of experts on nodes first
  kElasticityAware,       // elastic.h
  kYard,                  // yard.h
};
// Error kInvalid lists the names.
EplbAlgorithm ParseEplbAlgorithm(const std::string& name);

struct PlanRequest {
  const LoadHistory* history = nullptr;
  RankTopology topology;
  int physical = 0;                     // places, on all ranks, dead or alive
  const Placement* previous = nullptr;  // null: nothing is loaded yet
  YardOptions yard;
};

// A pure function: equal requests give equal plans on every rank, and nothing is moved yet. The
// plan is valid (ValidatePlacement) for the ranks that are alive. Error kInvalid: counts without
// steps or of another size than they say, ValidateTopology's, those of the algorithm, and
// `deepseek*` with dead ranks.
Placement PlanPlacement(EplbAlgorithm algorithm, const PlanRequest& request);

}  // namespace switchyard
