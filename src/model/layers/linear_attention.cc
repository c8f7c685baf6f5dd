#include "model/layers/linear_attention.h"

#include "core/check.h"
#include "kernels/recurrent.h"
#include "model/weights/shard.h"

namespace switchyard {

LinearAttention::LinearAttention(const LayerContext& context)
    : c_(context),
      l_(*context.config.linear),
      heads_(LinearKeyHeads(l_, context.mesh).size()),
      values_(l_.group() * l_.value_dim),
      mixed_width_(2 * l_.key_dim + values_) {
  CHECK(c_.device.recurrent() != nullptr);  // MakePlan rejects such models on GPUs
}

int64_t LinearScratchFloats(const LinearAttentionConfig& linear, int64_t heads, int64_t tokens) {
  const int64_t rows = tokens * heads, values = linear.group() * linear.value_dim;
  return LayerScratch::Floats({rows * (2 * linear.key_dim + 2 * values),
                               rows * (2 * linear.key_dim + values), rows * 2 * linear.group(),
                               rows * 2 * linear.group(), rows * values});
}

int64_t LinearAttention::ScratchFloats(int64_t max_tokens) const {
  return LinearScratchFloats(l_, heads_, max_tokens);
}

LinearAttention::Arrays LinearAttention::TakeArrays(Pass& pass) const {
  const int64_t rows = pass.rows.tokens * heads_;
  LayerScratch& scratch = pass.scratch;
  scratch.Reset();
  Arrays a{};
  a.projected = scratch.Take(rows * (mixed_width_ + values_));
  a.mixed = scratch.Take(rows * mixed_width_);
  a.ba = scratch.Take(rows * 2 * l_.group());
  a.gates = scratch.Take(rows * 2 * l_.group());
  a.attended = scratch.Take(rows * values_);
  return a;
}

void LinearAttention::Run(Pass& pass, const LinearAttentionWeights& w, int64_t layer,
                          const float* x, float* out) const {
  const Arrays a = TakeArrays(pass);
  Project(pass, a, w, x);
  Convolve(pass, a, w, layer);
  Recur(pass, a, w, layer);
  const int64_t width = heads_ * values_;
  c_.device.recurrent()->GatedNorm({.x = a.attended,
                                    .ldx = width,
                                    .weight = w.norm.data<float>(),
                                    .z = a.projected + mixed_width_,
                                    .ldz = heads_ * (mixed_width_ + values_),
                                    .z_stride = mixed_width_ + values_,
                                    .group = l_.group(),
                                    .m = pass.rows.tokens,
                                    .heads = heads_ * l_.group(),
                                    .n = l_.value_dim,
                                    .eps = c_.config.norm_eps});
  c_.device.Linear({.x = a.attended,
                    .ldx = width,
                    .w = w.o.w,
                    .bias = w.o.bias_data(),
                    .y = out,
                    .ldy = c_.config.hidden,
                    .m = pass.rows.tokens});
}

void LinearAttention::Project(const Pass& pass, const Arrays& a, const LinearAttentionWeights& w,
                              const float* x) const {
  const auto projection = [&](const LinearWeight& p, float* y, int64_t width) {
    return kernels::LinearParams{.x = x,
                                 .ldx = c_.config.hidden,
                                 .w = p.w,
                                 .bias = p.bias_data(),
                                 .y = y,
                                 .ldy = width,
                                 .m = pass.rows.tokens};
  };
  const kernels::LinearParams both[] = {
      projection(w.qkvz, a.projected, heads_ * (mixed_width_ + values_)),
      projection(w.ba, a.ba, heads_ * 2 * l_.group())};
  c_.device.LinearGroup(both);
}

void LinearAttention::Convolve(Pass& pass, const Arrays& a, const LinearAttentionWeights& w,
                               int64_t layer) const {
  StateStorage& states = pass.kv->states();
  c_.device.recurrent()->ShortConv({.x = a.projected,
                                    .ldx = heads_ * (mixed_width_ + values_),
                                    .group_stride = mixed_width_ + values_,
                                    .groups = heads_,
                                    .channels = mixed_width_,
                                    .width = l_.conv_width,
                                    .weight = w.conv.data<float>(),
                                    .states = states.inputs(layer),
                                    .state_stride = states.slot_floats(),
                                    .sequences = pass.states,
                                    .y = a.mixed,
                                    .ldy = heads_ * mixed_width_});
}

void LinearAttention::Recur(Pass& pass, const Arrays& a, const LinearAttentionWeights& w,
                            int64_t layer) const {
  StateStorage& states = pass.kv->states();
  const int64_t group = l_.group();
  c_.device.recurrent()->GatedDelta({.q = a.mixed,
                                     .k = a.mixed + l_.key_dim,
                                     .v = a.mixed + 2 * l_.key_dim,
                                     .ld = heads_ * mixed_width_,
                                     .q_stride = mixed_width_,
                                     .k_stride = mixed_width_,
                                     .v_stride = mixed_width_,
                                     .a = a.ba + group,
                                     .b = a.ba,
                                     .ld_gates = heads_ * 2 * group,
                                     .a_stride = 2 * group,
                                     .b_stride = 2 * group,
                                     .rate = w.rate.data<float>(),
                                     .bias = w.bias.data<float>(),
                                     .key_heads = heads_,
                                     .value_heads = heads_ * group,
                                     .key_dim = l_.key_dim,
                                     .value_dim = l_.value_dim,
                                     .states = states.heads(layer),
                                     .state_stride = states.slot_floats(),
                                     .sequences = pass.states,
                                     .m = pass.rows.tokens,
                                     .gates = a.gates,
                                     .out = a.attended,
                                     .ldo = heads_ * values_});
}

}  // namespace switchyard
