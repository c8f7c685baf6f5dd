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
  // Ranks of the first and last stage that hold the tied embedding.
  Collectives* embedding = nullptr;
};

// Sums the gradient of each parameter over its group, exactly once and in place. The order of the
// sum is the rank order, so all ranks that hold a tensor get the same bits. Collective: every rank
// of a group must pass the same parameters in the same order.
void SumGradients(std::span<Parameter<float>* const> parameters, const GradientGroups& groups);

// SumGradients for a single pipeline stage without tensor parallelism. `all`: the ranks of the
// stage.
void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies = nullptr);

}  // namespace switchyard::train
