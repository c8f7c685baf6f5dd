// FLOPs of attention, for fractions of the roofline.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace switchyard {

// FLOPs of attention to the keys of one prompt of `input` tokens, in all layers and heads: products
// of queries and keys, of probabilities and values, and of an indexer with its keys. Queries read
// the keys up to their position. Projections are not counted; windows and linear attention count as
// attention to all keys, except in models with compressed attention.
double AttentionFlops(const ModelConfig& config, int64_t input);

}  // namespace switchyard
