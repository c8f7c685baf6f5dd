// Prepares routers: unsharded on every rank, in float32, bfloat16 or float16, with finite numbers
// only.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/weights.h"

namespace switchyard {

// For benchmarks with dummy weights: the experts of a token follow from its id (hash routing,
// RouterConfig::by_token), and each layer draws them independently of other layers. Expert e has
// the weight (e + 1)^−exponent, so expert 0 is the most popular one; exponent 0 is uniform routing.
// A token's experts are drawn one after another, without replacement, in proportion to the weights.
// Tokens of batches must be below kSkewedTokens.
//
// Call it before the model is made; FinishRouters then draws the experts. Error kInvalid names
// --expert-skew: the model has no experts, experts without computation, or experts with narrower
// rows than the router.
void SkewRouting(double exponent, ModelConfig* config);
constexpr int64_t kSkewedTokens = 4096;

// Converts quantized routers to float32, which every device supports. With
// ModelConfig::same_experts, their weights become 0, so only biases decide. With
// ModelConfig::expert_skew, draws the experts of each token id. Error kInvalid names
// layer, expert and the tensor (weight, bias or correction bias) with a NaN or infinite number:
// such a router would silently disable experts.
void FinishRouters(const ModelConfig& config, ModelWeights* weights);

}  // namespace switchyard
