// Prepares routers: unsharded on every rank, in float32, bfloat16 or float16, with finite numbers
// only.
#pragma once

#include "model/weights.h"

namespace switchyard {

// Converts quantized routers to float32, which every device supports. With
// ModelConfig::same_experts, their weights become 0, so only biases decide. Error kInvalid names
// layer, expert and the tensor (weight, bias or correction bias) with a NaN or infinite number:
// such a router would silently disable experts.
void FinishRouters(const ModelConfig& config, ModelWeights* weights);

}  // namespace switchyard
