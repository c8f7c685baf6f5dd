// Gradient sums over ranks, after the last micro-batch of a step.
#pragma once

#include <span>

#include "comm/device/collectives.h"
#include "train/parameter.h"

namespace switchyard::train {

// The groups over which a rank's gradients must be summed; null: the rank is alone in the group.
struct GradientGroups {
  // All ranks of the pipeline stage, for replicated tensors. Each rank has the gradient of its own
  // rows and heads only.
  Collectives* stage = nullptr;
  Collectives* copies = nullptr;         // ranks with the same tensor-parallel shard and other rows
  Collectives* expert_copies = nullptr;  // ranks with the same experts
  Collectives* embedding =
      nullptr;  // ranks of the first and last stage that hold the tied embedding
};

// Sums each parameter over its group, exactly once, in place and in rank order, so that all ranks
// that hold a tensor have the same bits. Collective: the same parameters in the same order on every
// rank of a group.
void SumGradients(std::span<Parameter<float>* const> parameters, const GradientGroups& groups);

// SumGradients for a single pipeline stage without tensor parallelism. `all`: the ranks of the
// stage.
void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies = nullptr);

}  // namespace switchyard::train
