#include "model/layers/linear_attention.h"

#include <vector>

#include "core/check.h"
#include "core/tensor.h"
#include "kernels/recurrent.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

const float* FloatsOrNull(const Tensor& t) { return t.defined() ? t.data<float>() : nullptr; }

}  // namespace

LinearAttention::LinearAttention(const LayerContext& context)
    : c_(context),
      l_(*context.config.linear),
      heads_(LinearKeyHeads(l_, context.mesh).size()),
      at_(l_, heads_),
      chunks_(kernels::ChunksPrompts(l_.rule, l_.key_dim) && c_.device.recurrent() != nullptr &&
              c_.device.recurrent()->ChunksRows(l_.key_dim)) {
  CHECK(c_.device.recurrent() != nullptr);
}

int64_t LinearScratchFloats(const LinearAttentionConfig& linear, int64_t heads, int64_t tokens,
                            bool chunks) {
  const LinearLayout at(linear, heads);
  return LayerScratch::Floats(
      {tokens * at.width, linear.convolves() ? tokens * at.mixed_width : 0, tokens * at.gates_width,
       tokens * at.factors_width, tokens * at.low_width, tokens * heads * at.values,
       chunks ? tokens * heads * linear.group() * kernels::kDeltaChunkFloats : 0});
}

int64_t LinearAttention::ScratchFloats(int64_t max_tokens) const {
  return LinearScratchFloats(l_, heads_, max_tokens, chunks_);
}

LinearAttention::Arrays LinearAttention::TakeArrays(Pass& pass) const {
  const int64_t tokens = pass.rows.tokens;
  LayerScratch& scratch = pass.scratch;
  scratch.Reset();
  Arrays a{};
  a.projected = scratch.Take(tokens * at_.width);
  a.mixed = l_.convolves() ? scratch.Take(tokens * at_.mixed_width) : a.projected;
  a.mixed_ld = l_.convolves() ? at_.mixed_width : at_.width;
  a.ba = scratch.Take(tokens * at_.gates_width);
  a.gates = scratch.Take(tokens * at_.factors_width);
  a.low = scratch.Take(tokens * at_.low_width);
  a.attended = scratch.Take(tokens * heads_ * at_.values);
  if (chunks_) a.chunks = scratch.Take(tokens * heads_ * l_.group() * kernels::kDeltaChunkFloats);
  return a;
}

void LinearAttention::Run(Pass& pass, const LinearAttentionWeights& w, int64_t layer,
                          const float* x, float* out) const {
  const Arrays a = TakeArrays(pass);
  Project(pass, a, w, x);
  if (l_.convolves()) {
    Convolve(pass, a, w, layer);
  } else {
    NormAndRotate(pass, a, w, layer);
  }
  Recur(pass, a, w, layer);
  Gate(pass, a, w);
  c_.device.Linear({.x = a.attended,
                    .ldx = heads_ * at_.values,
                    .w = w.o.w,
                    .bias = w.o.bias_data(),
                    .y = out,
                    .ldy = c_.config.hidden,
                    .m = pass.rows.tokens});
}

void LinearAttention::Gate(const Pass& pass, const Arrays& a,
                           const LinearAttentionWeights& w) const {
  const HeadNorm norm = NormOfOutput();
  c_.device.recurrent()->GatedNorm({.x = a.attended,
                                    .ldx = heads_ * at_.values,
                                    .weight = w.norm.data<float>(),
                                    .weight_stride = norm.own_weights ? norm.n : 0,
                                    .z = a.projected + at_.z.first,
                                    .ldz = at_.width,
                                    .z_stride = norm.z_stride,
                                    .group = norm.group,
                                    .gate = norm.gate,
                                    .m = pass.rows.tokens,
                                    .heads = norm.heads,
                                    .n = norm.n,
                                    .eps = norm.eps});
}

LinearAttention::HeadNorm LinearAttention::NormOfOutput() const {
  using kernels::OutputGate;
  HeadNorm norm{.heads = heads_ * l_.group(),
                .n = l_.value_dim,
                .group = l_.group(),
                .z_stride = at_.z.stride,
                .eps = c_.config.norm_eps};
  switch (l_.rule) {
    case kernels::StateRule::kDelta:
      break;
    case kernels::StateRule::kKeyDelta:
      norm.gate = OutputGate::kSigmoid;
      break;
    case kernels::StateRule::kMamba2:  // all value heads of a key head together
      norm = {.heads = heads_,
              .n = at_.values,
              .z_stride = at_.z.stride,
              .eps = norm.eps,
              .own_weights = true,
              .gate = OutputGate::kSiluBefore};
      break;
    case kernels::StateRule::kFixed: {
      const int64_t n = l_.value_heads * l_.value_dim / l_.norm_groups;
      // Outputs of the rule are those of queries that were not divided by √key_dim. The norm
      // removes this factor, except from the epsilon.
      norm = {.heads = heads_ * l_.value_dim / n,
              .n = n,
              .z_stride = n,
              .eps = norm.eps * static_cast<float>(l_.key_dim),
              .own_weights = true,
              .gate = l_.silu_gate ? OutputGate::kSilu : OutputGate::kSigmoid};
      break;
    }
  }
  return norm;
}

void LinearAttention::NormAndRotate(const Pass& pass, const Arrays& a,
                                    const LinearAttentionWeights& w, int64_t layer) const {
  const auto norm = [&](int64_t first, const Tensor& weight) {
    if (!weight.defined()) return;
    c_.device.recurrent()->GatedNorm({.x = a.projected + first,
                                      .ldx = at_.width,
                                      .weight = weight.data<float>(),
                                      .gate = kernels::OutputGate::kNone,
                                      .m = pass.rows.tokens,
                                      .heads = heads_,
                                      .n = l_.key_dim,
                                      .eps = c_.config.norm_eps});
  };
  norm(at_.q.first, w.q_norm);
  norm(at_.k.first, w.k_norm);
  const RopeConfig& rope = c_.config.rope_of(layer);
  c_.device.Rope({.x = a.projected + at_.q.first,  // the keys follow the queries
                  .ldx = at_.width,
                  .m = pass.rows.tokens,
                  .heads = 2 * heads_,
                  .head_dim = l_.key_dim,
                  .rotary_dim = rope.rotary_dim,
                  .interleaved = rope.interleaved,
                  .positions = pass.rows.positions,
                  .cos_sin = c_.cos_sin_of(layer).data<float>()});
}

void LinearAttention::Project(const Pass& pass, const Arrays& a, const LinearAttentionWeights& w,
                              const float* x) const {
  std::vector<kernels::LinearParams> all;
  const auto add = [&](const WeightView& weight, const float* bias, float* y, int64_t width) {
    all.push_back({.x = x,
                   .ldx = c_.config.hidden,
                   .w = weight,
                   .bias = bias,
                   .y = y,
                   .ldy = width,
                   .m = pass.rows.tokens});
  };
  const auto add_all = [&](const std::vector<LinearWeight>& projections,
                           const LinearWeight& stacked, float* y, int64_t width) {
    if (stacked.w.defined()) return add(stacked.w, stacked.bias_data(), y, width);
    for (const LinearWeight& p : projections) {
      add(p.w, p.bias_data(), y, width);
      y += p.w.n;
    }
  };
  add_all(w.in, w.stacked_in, a.projected, at_.width);
  add_all(w.gates, w.stacked_gates, a.ba, at_.gates_width);
  add_all(w.low_in, LinearWeight(), a.low, at_.low_width);
  c_.device.LinearGroup(all);
  if (w.low_in.empty()) return;
  const auto second = [&](int64_t first, const LinearWeight& weight, float* y, int64_t ldy) {
    c_.device.Linear({.x = a.low + first,
                      .ldx = at_.low_width,
                      .w = weight.w,
                      .bias = weight.bias_data(),
                      .y = y,
                      .ldy = ldy,
                      .m = pass.rows.tokens});
  };
  second(0, w.low_a, a.ba + at_.a.first, at_.gates_width);
  second(l_.gate_rank, w.low_z, a.projected + at_.z.first, at_.width);
}

void LinearAttention::Convolve(Pass& pass, const Arrays& a, const LinearAttentionWeights& w,
                               int64_t layer) const {
  StateStorage& states = pass.kv->states();
  c_.device.recurrent()->ShortConv({.x = a.projected,
                                    .ldx = at_.width,
                                    .group_stride = at_.group_stride,
                                    .groups = at_.groups,
                                    .channels = at_.channels,
                                    .width = l_.conv_width,
                                    .weight = w.conv.data<float>(),
                                    .bias = FloatsOrNull(w.conv_bias),
                                    .states = states.inputs(layer),
                                    .state_stride = states.slot_floats(),
                                    .sequences = pass.states,
                                    .num_sequences = pass.num_states,
                                    .m = pass.rows.tokens,
                                    .y = a.mixed,
                                    .ldy = at_.mixed_width});
}

void LinearAttention::Recur(Pass& pass, const Arrays& a, const LinearAttentionWeights& w,
                            int64_t layer) const {
  StateStorage& states = pass.kv->states();
  c_.device.recurrent()->GatedDelta({.q = a.mixed + at_.q.first,
                                     .k = a.mixed + at_.k.first,
                                     .v = a.mixed + at_.v.first,
                                     .ld = a.mixed_ld,
                                     .q_stride = at_.q.stride,
                                     .k_stride = at_.k.stride,
                                     .v_stride = at_.v.stride,
                                     .a = at_.a.stride > 0 ? a.ba + at_.a.first : nullptr,
                                     .b = at_.b.stride > 0 ? a.ba + at_.b.first : nullptr,
                                     .ld_gates = at_.gates_width,
                                     .a_stride = at_.a.stride,
                                     .b_stride = at_.b.stride,
                                     .rate = w.rate.data<float>(),
                                     .bias = FloatsOrNull(w.bias),
                                     .rule = l_.rule,
                                     .skip = FloatsOrNull(w.skip),
                                     .min_step = l_.min_step,
                                     .bound = l_.bound,
                                     .key_heads = heads_,
                                     .value_heads = heads_ * l_.group(),
                                     .key_dim = l_.key_dim,
                                     .value_dim = l_.value_dim,
                                     .states = states.heads(layer),
                                     .state_stride = states.slot_floats(),
                                     .sequences = pass.states,
                                     .num_sequences = pass.num_states,
                                     .m = pass.rows.tokens,
                                     .gates = a.gates,
                                     .out = a.attended,
                                     .ldo = heads_ * at_.values,
                                     .chunked = chunks_ && pass.has_chunked_rows,
                                     .chunk_scratch = a.chunks});
}

}  // namespace switchyard
