// The MoE layer as one plain function: what every combination of backends is held against.
#pragma once

#include <cstdint>

#include "moe/layer.h"
#include "moe/router.h"
#include "moe/rows.h"

namespace switchyard {

// out [tokens, H]: the layer's output for hidden [tokens, H], by one process that holds every
// expert whole (`weights.experts` in order of logical id; config.placement is not looked at).
// Dequantizes each weight, sums in double, and rounds where the path rounds: rows to `format`
// before the experts and to its dtype after them, and what experts multiply to their activation
// format. `shared_dispatched`: the shared expert's rows travel too (--enable-deepep-waterfill).
void MoeReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, RowFormat format,
                  const float* hidden, int64_t tokens, float* out, bool shared_dispatched = false);

// The routed part alone, for a given choice of experts.
void RoutedReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, RowFormat format,
                     const float* hidden, const TopK& topk, float* out);

}  // namespace switchyard
