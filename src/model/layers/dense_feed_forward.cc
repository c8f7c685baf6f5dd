#include "model/layers/dense_feed_forward.h"

#include "core/check.h"
#include "model/layers/token_exchange.h"

namespace switchyard {

DenseFeedForward::DenseFeedForward(const ModelConfig& config, const Mesh& mesh, int64_t middle,
                                   int64_t max_tokens, kernels::Device& device)
    : whole_(mesh.replicated_dense()) {
  const bool gathers = !whole_ && mesh.dp() > 1;
  const int64_t rows = whole_    ? CeilDiv(max_tokens, mesh.attn_tp())
                       : gathers ? max_tokens * mesh.dp()
                                 : max_tokens;
  middle_.Reserve(device, rows * middle);
  if (!gathers) return;
  gathered_.Reserve(device, rows * config.hidden);
  sum_.Reserve(device, rows * config.hidden);
}

void DenseFeedForward::Forward(const LayerContext& c, const kernels::ExpertWeights& w,
                               const float* x, float* out) {
  const int64_t hidden = c.config.hidden;
  if (whole_) {
    const Share own = c.partition.own(c.mesh.rank());
    Run(c, w, x + own.begin * hidden, own.size(), out + own.begin * hidden);
    GatherGroup(c.mesh, c.groups, c.partition, hidden, out);
  } else if (gathered_.empty()) {
    Run(c, w, x, c.rows.tokens, out);
    c.groups.tp->AllReduceSum(out, c.rows.tokens * hidden);
  } else {
    GatherWorld(c.mesh, c.groups, c.partition, hidden, x, gathered_.data());
    Run(c, w, gathered_.data(), c.partition.total(), sum_.data());
    ReduceToGroups(c.mesh, c.groups, c.partition, hidden, sum_.data(), out);
  }
}

void DenseFeedForward::Run(const LayerContext& c, const kernels::ExpertWeights& w, const float* x,
                           int64_t rows, float* out) {
  if (rows == 0) return;
  CHECK_LE(rows * w.gate.n, middle_.size());
  const int32_t offsets[] = {0, static_cast<int32_t>(rows)};
  c.device.Mlp({.x = x,
                .ldx = c.config.hidden,
                .experts = {&w, 1},
                .offsets = offsets,
                .activation = c.config.activation,
                .alpha = c.config.swiglu_alpha,
                .limit = c.config.swiglu_limit,
                .scratch = middle_.data(),
                .out = out,
                .ldo = c.config.hidden});
}

}  // namespace switchyard
