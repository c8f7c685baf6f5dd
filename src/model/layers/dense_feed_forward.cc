#include "model/layers/dense_feed_forward.h"

#include "core/check.h"
#include "model/layers/token_exchange.h"

namespace switchyard {

DenseFeedForward::DenseFeedForward(const LayerContext& context, int64_t middle)
    : c_(context),
      middle_(middle),
      whole_(context.mesh.replicated_dense()),
      gathers_(!whole_ && context.mesh.dp() > 1) {}

int64_t DenseFeedForward::ScratchFloats(int64_t max_tokens) const {
  if (whole_) return LayerScratch::Floats({CeilDiv(max_tokens, c_.mesh.attn_tp()) * middle_});
  if (!gathers_) return LayerScratch::Floats({max_tokens * middle_});
  const int64_t rows = max_tokens * c_.mesh.dp();
  return LayerScratch::Floats({rows * c_.config.hidden, rows * c_.config.hidden, rows * middle_});
}

void DenseFeedForward::Forward(Pass& pass, const kernels::ExpertWeights& w, const float* x,
                               float* out) const {
  const int64_t hidden = c_.config.hidden;
  pass.scratch.Reset();
  if (whole_) {
    const Range own = pass.partition.own(c_.mesh.tp_rank());
    Run(pass, w, x + own.begin * hidden, own.size(), out + own.begin * hidden);
    GatherGroup(c_.mesh, c_.groups, pass.partition, hidden, out);
  } else if (!gathers_) {
    Run(pass, w, x, pass.rows.tokens, out);
    c_.groups.tp->AllReduceSum(out, pass.rows.tokens * hidden);
  } else {
    const int64_t all = pass.partition.total();
    float* gathered = pass.scratch.Take(all * hidden);
    float* sums = pass.scratch.Take(all * hidden);
    GatherWorld(c_.mesh, c_.groups, pass.partition, hidden, x, gathered);
    Run(pass, w, gathered, all, sums);
    ReduceToGroups(c_.mesh, c_.groups, pass.partition, hidden, sums, out);
  }
}

void DenseFeedForward::Run(Pass& pass, const kernels::ExpertWeights& w, const float* x,
                           int64_t rows, float* out) const {
  if (rows == 0) return;
  const int32_t offsets[] = {0, static_cast<int32_t>(rows)};
  c_.device.Mlp({.x = x,
                 .ldx = c_.config.hidden,
                 .experts = {&w, 1},
                 .offsets = offsets,
                 .activation = c_.config.activation,
                 .alpha = c_.config.swiglu_alpha,
                 .limit = c_.config.swiglu_limit,
                 .scratch = pass.scratch.Take(rows * w.gate.n),
                 .out = out,
                 .ldo = c_.config.hidden});
}

}  // namespace switchyard
