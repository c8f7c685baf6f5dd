#include "moe/runners/shared_expert.h"

#include <array>
#include <cmath>

#include "moe/rows.h"

namespace switchyard {

const float* SharedGates(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                         const float* x, int64_t tokens, SharedExpertScratch* scratch,
                         ThreadPool& pool) {
  if (!weights.shared_gate.defined()) return nullptr;
  float* gate = scratch->gate.Get(tokens);
  if (tokens == 0) return gate;
  kernels::Linear(
      {.x = x, .ldx = config.hidden, .w = weights.shared_gate, .y = gate, .ldy = 1, .m = tokens},
      pool);
  for (int64_t t = 0; t < tokens; ++t) gate[t] = 1.0f / (1.0f + std::exp(-gate[t]));
  return gate;
}

void ComputeSharedExpert(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                         const float* x, int64_t tokens, SharedExpertScratch* scratch,
                         ThreadPool& pool) {
  const int64_t hidden = config.hidden;
  float* y = scratch->y.Get(tokens * hidden);
  if (tokens == 0) return;
  const std::array<int32_t, 2> offsets = {0, static_cast<int32_t>(tokens)};
  kernels::GroupedMlp({.x = x,
                       .ldx = hidden,
                       .experts = {&weights.shared, 1},
                       .offsets = offsets,
                       .activation = config.activation,
                       .alpha = config.swiglu_alpha,
                       .limit = config.swiglu_limit,
                       .scratch = scratch->middle.Get(tokens * weights.shared.gate.n),
                       .out = y,
                       .ldo = hidden},
                      pool);
  const float* gate = SharedGates(config, weights, x, tokens, scratch, pool);
  if (!gate) return;
  pool.RunRanges(tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < hidden; ++i) y[t * hidden + i] *= gate[t];
  });
}

}  // namespace switchyard
