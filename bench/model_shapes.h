// MoE layers of published models, for benchmarks with random weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moe/router/router.h"

namespace switchyard::bench {

struct ModelShape {
  std::string name;
  int64_t hidden, intermediate;  // of a routed expert
  int num_experts, top_k;
  bool fp8;     // true: experts in 128 × 128 FP8 blocks and a sigmoid router in 8 groups; false:
                // bfloat16
  bool shared;  // a shared expert as wide as a routed one

  // Router over `experts` experts; selects top_k of them, or all if there are fewer.
  RouterConfig Router(int experts) const {
    RouterConfig router = {
        .num_experts = experts,
        .top_k = top_k < experts ? top_k : experts,
        .scoring = fp8 ? RouterConfig::Scoring::kSigmoid : RouterConfig::Scoring::kSoftmax,
        .renormalize = true};
    if (fp8 && experts >= 16 && experts % 8 == 0) {  // top_k from four groups
      router.num_groups = 8;
      router.topk_groups = 4;
      router.group_score = RouterConfig::GroupScore::kTop2Sum;
    }
    return router;
  }
  double WeightsOfExpert() const { return 3.0 * static_cast<double>(hidden * intermediate); }
  double BytesOfExpert() const { return WeightsOfExpert() * (fp8 ? 1 : 2); }
};

// From the models' config.json.
inline const std::vector<ModelShape>& ModelShapes() {
  static const std::vector<ModelShape> shapes = {
      {"olmoe-1b-7b", 2048, 1024, 64, 8, false, false},
      {"qwen3-30b-a3b", 2048, 768, 128, 8, false, false},
      {"deepseek-v3", 7168, 2048, 256, 8, true, true},
  };
  return shapes;
}

}  // namespace switchyard::bench
