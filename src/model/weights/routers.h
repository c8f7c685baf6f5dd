// Routers as they are used: whole on every rank, in float32, bfloat16 or float16, all numbers
// finite.
#pragma once

#include "model/weights.h"

namespace switchyard {

// Routers that the checkpoint stores quantized become float32, which every device multiplies. Error
// kInvalid names layer, expert and what (weight, bias or correction bias) is NaN or infinite: such
// a router would switch experts off without a word.
void FinishRouters(const ModelConfig& config, ModelWeights* weights);

}  // namespace switchyard
