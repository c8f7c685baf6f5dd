// Log-probabilities of tokens at one position.
#pragma once

#include <cstdint>
#include <span>

#include "engine/request.h"

namespace switchyard {

// Log-softmax of the raw logits [vocab], before temperature, penalties and biases, as with vLLM's
// raw_logprobs. Returns the values of `token`, of the `params.top` most likely tokens and of
// `params.token_ids`. Among equally likely tokens, the lower id comes first.
PositionLogprobs LogprobsAt(std::span<const float> logits, int32_t token,
                            const LogprobParams& params);

}  // namespace switchyard
