#include "model/layers/hidden_input.h"

#include "core/check.h"

namespace switchyard {

int64_t HiddenInputScratchWidth(const ModelConfig& config) {
  if (!config.takes_hidden()) return 0;
  if (config.eagle && config.eagle->inner_rows) return config.target_row_width();
  // [e, h], or with residual streams e and all streams of h.
  return config.hidden + (config.eagle ? config.hidden : config.residual_width());
}

int64_t HiddenInput::ScratchFloats(int64_t max_tokens) const {
  return LayerScratch::Floats({max_tokens * HiddenInputScratchWidth(c_.config)});
}

void HiddenInput::Join(Pass& pass) const {
  CHECK(pass.rows.hidden != nullptr);
  pass.scratch.Reset();
  if (c_.config.eagle && c_.config.eagle->inner_rows) return JoinInner(pass);
  if (c_.config.is_mtp && c_.config.streams) return JoinStreams(pass);
  JoinProjected(pass);
}

void HiddenInput::JoinProjected(Pass& pass) const {
  const int64_t hidden = c_.config.hidden, width = 2 * hidden;
  float* const joined = pass.scratch.Take(pass.rows.tokens * width);  // [T, 2 · H]
  Norm(pass, pass.residual.data(), hidden, w_.embedding_norm, joined, width);
  Gather(pass, hidden, joined + hidden, width);
  if (w_.hidden_norm.defined())
    Norm(pass, joined + hidden, width, w_.hidden_norm, joined + hidden, width);
  Project(pass, joined, width, pass.residual.data());
}

void HiddenInput::JoinInner(Pass& pass) const {
  const int64_t hidden = c_.config.hidden, width = 2 * hidden;
  float* const joined = pass.joined.data();  // [T, 2 · H]
  float* const stream = pass.residual.data();
  Norm(pass, stream, hidden, w_.embedding_norm, joined, width);
  if (pass.rows.own_hidden) {
    Gather(pass, hidden, stream, hidden);
  } else {
    const int64_t of_target = c_.config.target_row_width();
    float* const rows = pass.scratch.Take(pass.rows.tokens * of_target);
    Gather(pass, of_target, rows, of_target);
    Project(pass, rows, of_target, stream);
  }
  Norm(pass, stream, hidden, w_.hidden_norm, joined + hidden, width);
  if (!c_.config.eagle->norm_before_residual) return;
  c_.device.CopyRows({.x = joined + hidden,
                      .ldx = width,
                      .y = stream,
                      .ldy = hidden,
                      .m = pass.rows.tokens,
                      .n = hidden});
}

void HiddenInput::JoinStreams(Pass& pass) const {
  const int64_t hidden = c_.config.hidden, width = c_.config.residual_width();
  const int64_t tokens = pass.rows.tokens, streams = width / hidden;
  float* const scratch = pass.scratch.Take(tokens * (hidden + width));
  float* const e = scratch;                    // [T, H]
  float* const h = scratch + tokens * hidden;  // [T, streams · H]
  float* const residual = pass.residual.data();
  Norm(pass, pass.normed.data(), hidden, w_.embedding_norm, e, hidden);
  c_.device.Linear({.x = e,
                    .ldx = hidden,
                    .w = w_.embedding_projection.w,
                    .bias = w_.embedding_projection.bias_data(),
                    .y = pass.normed.data(),
                    .ldy = hidden,
                    .m = tokens});
  Gather(pass, width, h, width);
  c_.device.RmsNorm({.x = h,
                     .ldx = hidden,
                     .weight = w_.hidden_norm.data<float>(),
                     .y = h,
                     .ldy = hidden,
                     .m = tokens * streams,
                     .n = hidden,
                     .eps = c_.config.norm_eps});
  for (int64_t first = 0; first < width; first += hidden)
    c_.device.CopyRows({.x = pass.normed.data(),
                        .ldx = hidden,
                        .y = residual + first,
                        .ldy = width,
                        .m = tokens,
                        .n = hidden});
  // A row of the residual per stream of a token.
  c_.device.Linear({.x = h,
                    .ldx = hidden,
                    .w = w_.projection.w,
                    .bias = w_.projection.bias_data(),
                    .y = residual,
                    .ldy = hidden,
                    .m = tokens * streams,
                    .accumulate = true});
}

void HiddenInput::Gather(const Pass& pass, int64_t width, float* y, int64_t ldy) const {
  c_.device.CopyRows({.x = pass.rows.hidden,
                      .ldx = width,
                      .rows = pass.rows.hidden_row,
                      .y = y,
                      .ldy = ldy,
                      .m = pass.rows.tokens,
                      .n = width});
}

void HiddenInput::Norm(const Pass& pass, const float* x, int64_t ldx, const Tensor& weight,
                       float* y, int64_t ldy) const {
  const int64_t hidden = c_.config.hidden, tokens = pass.rows.tokens;
  if (!weight.defined()) {
    c_.device.CopyRows({.x = x, .ldx = ldx, .y = y, .ldy = ldy, .m = tokens, .n = hidden});
    return;
  }
  c_.device.RmsNorm({.x = x,
                     .ldx = ldx,
                     .weight = weight.data<float>(),
                     .y = y,
                     .ldy = ldy,
                     .m = tokens,
                     .n = hidden,
                     .eps = c_.config.norm_eps});
}

void HiddenInput::Project(const Pass& pass, const float* x, int64_t width, float* y) const {
  c_.device.Linear({.x = x,
                    .ldx = width,
                    .w = w_.projection.w,
                    .bias = w_.projection.bias_data(),
                    .y = y,
                    .ldy = c_.config.hidden,
                    .m = pass.rows.tokens});
}

}  // namespace switchyard
