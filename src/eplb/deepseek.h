// DeepSeek's EPLB: replicates the most loaded experts, then packs them greedily.
#pragma once

#include <cstdint>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

struct DeepSeekPlan {
  Placement placement;
  std::vector<int32_t> replica;  // [layers, physical] index among its expert's replicas
};

// Algorithm of github.com/deepseek-ai/EPLB (eplb.py), with its float32 sums and tie-breaking order,
// so that plans equal those of the reference. The plan is for the load summed over all steps, and
// for all ranks, alive or dead. Error kInvalid if `physical` is not divisible by ranks, and for
// `hierarchical` if groups are not divisible by nodes or experts not by groups.
//
// Global: each replica goes to the expert with the highest load per replica. Replicas are packed
// in order of decreasing load onto the least loaded rank with a free slot. Two replicas of an
// expert may land on one rank. Hierarchical: groups of experts are packed onto nodes first; the
// other steps run within each node.
DeepSeekPlan PlanDeepSeek(const LoadHistory& history, const RankTopology& topology, int physical,
                          bool hierarchical);

}  // namespace switchyard
