// Sums of gradients over ranks, after the last micro-batch of a step.
#pragma once

#include <span>

#include "comm/device/collectives.h"
#include "train/parameter.h"

namespace switchyard::train {

// Adds up, in place, the gradients of the parameters that are whole on every rank, in rank order,
// so that all ranks have the same bits. Experts' gradients are complete where they live; with
// data-parallel copies of the experts `expert_copies` is the group of ranks that hold the same ones
// (null: there is one copy). Collective: the same parameters in the same order on every rank of a
// group.
void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies = nullptr);

}  // namespace switchyard::train
