// Sums of gradients over ranks, after the last micro-batch of a step.
#pragma once

#include <span>

#include "comm/device/collectives.h"
#include "train/parameter.h"

namespace switchyard::train {

// The ranks over which a rank's gradients are complete only as sums; null: it is alone there.
struct GradientGroups {
  // All ranks of the stage: what is whole on each, of which a rank has the gradient of its own rows
  // and its own heads.
  Collectives* stage = nullptr;
  Collectives* copies = nullptr;         // the same tensor-parallel slice, of other rows
  Collectives* expert_copies = nullptr;  // the same experts
  Collectives* embedding = nullptr;      // first and last stage: the embedding and its copy
};

// Adds up, in place and in rank order, so that all ranks that hold a tensor have the same bits:
// each parameter over its group, exactly once. Collective: the same parameters in the same order on
// every rank of a group.
void SumGradients(std::span<Parameter<float>* const> parameters, const GradientGroups& groups);

// The same of one stage without slices, whose ranks are `all`.
void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies = nullptr);

}  // namespace switchyard::train
