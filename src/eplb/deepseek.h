// DeepSeek's load balancer: replicate the hottest experts, then pack greedily.
#pragma once

#include <cstdint>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

struct DeepSeekPlan {
  Placement placement;
  std::vector<int32_t> replica;  // [layers, physical] number among its expert's replicas
};

// The algorithm of github.com/deepseek-ai/EPLB (eplb.py), with its float32 sums and its order among
// equals, so that results are equal to the reference's. On the sum of all steps, for all ranks,
// dead or alive. Error kInvalid where ranks do not divide `physical`, and for `hierarchical` where
// nodes do not divide groups and groups not experts.
//
// Global: replicas go one by one to the expert with the most load per replica; replicas, heaviest
// first, go to the lightest rank that has a place free, two of one expert on one rank if so it
// falls. Hierarchical: groups of experts are packed on nodes first, and all else happens inside a
// node.
DeepSeekPlan PlanDeepSeek(const LoadHistory& history, const RankTopology& topology, int physical,
                          bool hierarchical);

}  // namespace switchyard
