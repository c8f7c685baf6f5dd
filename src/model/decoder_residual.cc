// The residual of a decoder: norms of its rows, and the sums of branches, in one stream or several.
#include "core/check.h"
#include "kernels/streams.h"
#include "model/decoder.h"

namespace switchyard {

void Decoder::Norm(const float* x, const Tensor& weight, int64_t rows, float* y,
                   const kernels::RowHook* hook) const {
  const int64_t hidden = c_.config.hidden;
  if (c_.config.layer_norm)
    return c_.device.LayerNorm({.x = x,
                                .ldx = hidden,
                                .weight = weight.data<float>(),
                                .bias = weight.data<float>() + hidden,
                                .y = y,
                                .ldy = hidden,
                                .m = rows,
                                .n = hidden,
                                .eps = c_.config.norm_eps,
                                .hook = hook});
  c_.device.RmsNorm({.x = x,
                     .ldx = hidden,
                     .weight = weight.data<float>(),
                     .y = y,
                     .ldy = hidden,
                     .m = rows,
                     .n = hidden,
                     .eps = c_.config.norm_eps,
                     .hook = hook});
}

// With streams, `branch` is free: no block is in flight.
const float* Decoder::FinalRows(Pass& p) const {
  if (!c_.config.streams) return p.residual.data();
  if (p.rows.tokens > 0) Collapse(p, weights_.head_streams, /*mixes=*/false, p.branch.data());
  return p.branch.data();
}

void Decoder::Collapse(Pass& p, const StreamWeights& w, bool mixes, float* y) const {
  const int64_t width = c_.config.residual_width();
  const StreamsConfig& streams = *c_.config.streams;
  c_.device.Linear({.x = p.residual.data(),
                    .ldx = width,
                    .w = w.logits,
                    .y = p.stream_logits.data(),
                    .ldy = w.logits.n,
                    .m = p.rows.tokens});
  c_.device.SumSquares(
      {.x = p.residual.data(), .m = p.rows.tokens, .n = width, .squares = p.stream_squares.data()});
  c_.device.streams()->Collapse({.x = p.residual.data(),
                                 .m = p.rows.tokens,
                                 .n = streams.count,
                                 .width = c_.config.hidden,
                                 .logits = p.stream_logits.data(),
                                 .squares = p.stream_squares.data(),
                                 .base = w.base.data<float>(),
                                 .scale = w.scale.data<float>(),
                                 .iterations = streams.iterations,
                                 .eps = streams.eps,
                                 .norm_eps = c_.config.norm_eps,
                                 .mix = mixes ? p.stream_mix.data() : nullptr,
                                 .y = y});
}

void Decoder::NormResidual(Pass& p, const Tensor& weight, const StreamWeights& streams,
                           const kernels::RowHook* hook,
                           const kernels::RoundedRows& rounded) const {
  const int64_t tokens = p.rows.tokens, hidden = c_.config.hidden;
  if (c_.config.streams) {
    Collapse(p, streams, /*mixes=*/true, p.normed.data());
    return Norm(p.normed.data(), weight, tokens, p.normed.data(), hook);
  }
  if (!weight.defined()) {
    if (p.branch_pending) AddPendingBranch(p);
    c_.device.CopyRows({.x = p.residual.data(),
                        .ldx = hidden,
                        .y = p.normed.data(),
                        .ldy = hidden,
                        .m = tokens,
                        .n = hidden});
    return;
  }
  if (!fused_) return Norm(p.residual.data(), weight, tokens, p.normed.data(), hook);
  fused_->AddNorm({.x = p.residual.data(),
                   .add = p.branch_pending ? p.branch.data() : nullptr,
                   .weight = weight.data<float>(),
                   .y = rounded.form == kernels::RoundedForm::kNone ? p.normed.data() : nullptr,
                   .rounded = rounded,
                   .m = tokens,
                   .n = hidden,
                   .eps = c_.config.norm_eps});
  p.branch_pending = false;
}

void Decoder::AddBranch(Pass& p, const Tensor& norm) const {
  if (norm.defined()) Norm(p.branch.data(), norm, p.rows.tokens, p.branch.data());
  p.branch_pending = fused_ != nullptr;
  if (!p.branch_pending) AddPendingBranch(p);
}

void Decoder::CompleteResidual(std::span<Pass* const> passes) const {
  for (Pass* const p : passes)
    if (p->branch_pending && !p->aborted) AddPendingBranch(*p);
}

void Decoder::AddPendingBranch(Pass& p) const {
  p.branch_pending = false;
  if (c_.config.streams)
    return c_.device.streams()->Expand({.x = p.residual.data(),
                                        .mix = p.stream_mix.data(),
                                        .branch = p.branch.data(),
                                        .m = p.rows.tokens,
                                        .n = c_.config.streams->count,
                                        .width = c_.config.hidden});
  c_.device.AddInPlace(p.residual.data(), p.branch.data(), p.rows.tokens * c_.config.hidden);
}

}  // namespace switchyard
