// The MoE layer as one plain function: what every combination of backends is held against.
#pragma once

#include <cstdint>

#include "moe/layer.h"
#include "moe/router.h"

namespace switchyard {

// out [tokens, H]: the layer's output for hidden [tokens, H], by one process that holds every
// expert whole (`weights.experts` in order of id). Dequantizes each weight, sums in double, and
// rounds where the path rounds: rows to `row_dtype` before the experts and after them.
void MoeReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, DType row_dtype,
                  const float* hidden, int64_t tokens, float* out);

// The routed part alone, for a given choice of experts.
void RoutedReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, DType row_dtype,
                     const float* hidden, const TopK& topk, float* out);

}  // namespace switchyard
