// Single-process reference of the MoE layer, against which all backend combinations are tested.
#pragma once

#include <cstdint>

#include "moe/layer_config.h"
#include "moe/router/router.h"
#include "moe/rows.h"

namespace switchyard {

// Computes out [tokens, H], the layer's output for hidden [tokens, H], in one process with all
// experts unsliced. `weights.experts` must be in order of logical id; config.placement is ignored.
// Dequantizes each weight and sums in double. Rounds at the same points as the MoE path: rows to
// `format` before the experts and to its dtype after them, and GEMM inputs to their activation
// format. With `shared_dispatched`, the shared expert's rows are rounded too
// (--enable-deepep-waterfill). `router_rows` [tokens, config.router_width]: as in MoeTokens.
void MoeReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, RowFormat format,
                  const float* hidden, int64_t tokens, float* out, bool shared_dispatched = false,
                  const float* router_rows = nullptr);

// Like MoeReference, but computes only the routed experts, for given expert ids.
void RoutedReference(const MoeLayerConfig& config, const MoeLayerWeights& weights, RowFormat format,
                     const float* hidden, const TopK& topk, float* out);

}  // namespace switchyard
