// Selects placement planners by name.
#pragma once

#include <optional>
#include <string>

#include "eplb/types.h"
#include "eplb/yard.h"

namespace switchyard {

// `--eplb-algorithm`. All names except `yard` are SGLang's.
enum class EplbAlgorithm {
  kAuto,                  // yard
  kDeepSeek,              // deepseek.h, distributes experts over all ranks
  kDeepSeekHierarchical,  // deepseek.h, assigns groups of experts to nodes first
  kElasticityAware,       // elastic.h
  kYard,                  // yard.h
};
// Error kInvalid lists the names.
EplbAlgorithm ParseEplbAlgorithm(const std::string& name);

struct PlanRequest {
  const LoadHistory* history = nullptr;
  RankTopology topology;
  int physical = 0;                     // slots on all ranks, alive or dead
  const Placement* previous = nullptr;  // null: nothing is loaded yet
  YardOptions yard;
};

// A pure function: equal requests give equal plans on every rank; no weights are moved. The plan is
// valid (ValidatePlacement) for the living ranks. Error kInvalid if there are no steps, if counts
// have an inconsistent size, or for `deepseek*` with dead ranks. Also throws the errors of
// ValidateTopology and of the algorithm.
Placement PlanPlacement(EplbAlgorithm algorithm, const PlanRequest& request);

}  // namespace switchyard
