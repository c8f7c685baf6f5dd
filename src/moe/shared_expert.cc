#include "moe/shared_expert.h"

#include <array>
#include <cmath>

#include "moe/rows.h"

namespace switchyard {

void AddSharedExpert(const MoeLayerConfig& config, const MoeLayerWeights& weights, const float* x,
                     int64_t tokens, SharedExpertScratch* scratch, ThreadPool& pool, float* y) {
  if (tokens == 0) return;
  const int64_t hidden = config.hidden;
  const std::array<int32_t, 2> offsets = {0, static_cast<int32_t>(tokens)};
  float* shared = scratch->y.Get(tokens * hidden);
  kernels::GroupedMlp({.x = x,
                       .ldx = hidden,
                       .experts = {&weights.shared, 1},
                       .offsets = offsets,
                       .activation = config.activation,
                       .alpha = config.swiglu_alpha,
                       .limit = config.swiglu_limit,
                       .scratch = scratch->middle.Get(tokens * weights.shared.gate.n),
                       .out = shared,
                       .ldo = hidden},
                      pool);
  if (!weights.shared_gate.defined()) {
    kernels::AddInPlace(y, shared, tokens * hidden, pool);
    return;
  }

  float* gate = scratch->gate.Get(tokens);
  kernels::Linear(
      {.x = x, .ldx = hidden, .w = weights.shared_gate, .y = gate, .ldy = 1, .m = tokens}, pool);
  pool.RunRanges(tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float open = 1.0f / (1.0f + std::exp(-gate[t]));
      for (int64_t i = 0; i < hidden; ++i) y[t * hidden + i] += open * shared[t * hidden + i];
    }
  });
}

}  // namespace switchyard
