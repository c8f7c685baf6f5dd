// Log-probabilities of tokens at one position.
#pragma once

#include <cstdint>
#include <span>

#include "engine/request.h"

namespace switchyard {

// log-softmax of the raw logits [vocab], before temperature, penalties and biases, as SGLang
// reports them. `top` best alternatives by partial selection, the lower id first among equals.
PositionLogprobs LogprobsAt(std::span<const float> logits, int32_t token,
                            const LogprobParams& params);

}  // namespace switchyard
