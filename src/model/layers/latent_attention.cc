#include "model/layers/latent_attention.h"

#include "core/check.h"
#include "model/rope.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

// Epsilon of the norms inside MLA. DeepSeek's code always uses 1e-6 and ignores rms_norm_eps, which
// is 1e-5 for Moonlight.
constexpr float kLatentNormEps = 1e-6f;
constexpr float kIndexNormEps = 1e-6f;  // the indexer's, in the same way

int64_t IndexWidth(const AttentionConfig& a) { return a.index_heads * a.index_head_dim; }

}  // namespace

LatentAttention::LatentAttention(const LayerContext& context)
    : c_(context),
      heads_(QueryHeads(context.config.attention, context.mesh).size()),
      nope_(context.config.attention.qk_nope_head_dim),
      rope_(context.config.attention.qk_rope_head_dim),
      lora_(context.config.attention.kv_lora_rank),
      value_(context.config.attention.v_head_dim) {}

int64_t LatentAttention::ScratchFloats(int64_t max_tokens) const {
  return LayerScratch::Floats(
      {max_tokens * c_.config.attention.q_lora_rank, max_tokens * heads_ * (nope_ + rope_),
       max_tokens * (lora_ + rope_), max_tokens * heads_ * (lora_ + rope_),
       max_tokens * heads_ * lora_, max_tokens * heads_ * value_,
       max_tokens * c_.config.attention.index_head_dim,
       max_tokens * IndexWidth(c_.config.attention), max_tokens * c_.config.attention.index_heads,
       c_.config.attention.gate ? max_tokens * heads_ : 0});
}

LatentAttention::Arrays LatentAttention::TakeArrays(Pass& pass) const {
  const int64_t tokens = pass.rows.tokens;
  LayerScratch& scratch = pass.scratch;
  scratch.Reset();
  Arrays a{};
  a.q_a = scratch.Take(tokens * c_.config.attention.q_lora_rank);
  a.q = scratch.Take(tokens * heads_ * (nope_ + rope_));
  a.latent = scratch.Take(tokens * (lora_ + rope_));
  a.q_absorbed = scratch.Take(tokens * heads_ * (lora_ + rope_));
  a.attended = scratch.Take(tokens * heads_ * lora_);
  a.values = scratch.Take(tokens * heads_ * value_);
  a.index_k = scratch.Take(tokens * c_.config.attention.index_head_dim);
  a.index_q = scratch.Take(tokens * IndexWidth(c_.config.attention));
  a.index_weights = scratch.Take(tokens * c_.config.attention.index_heads);
  if (c_.config.attention.gate) a.gates = scratch.Take(tokens * heads_);
  return a;
}

void LatentAttention::Attend(Pass& pass, const LatentAttentionWeights& w, int64_t layer,
                             float* out) const {
  const int64_t tokens = pass.rows.tokens;
  const int64_t q_head = nope_ + rope_, latent = lora_ + rope_;
  const Arrays a = TakeArrays(pass);  // the same arrays as in ProjectQueries

  c_.device.HeadLinear({.x = a.q,
                        .ldx = heads_ * q_head,
                        .head_stride_x = q_head,
                        .w = w.k_up,
                        .transposed = false,
                        .y = a.q_absorbed,
                        .ldy = heads_ * latent,
                        .head_stride_y = latent,
                        .m = tokens});
  c_.device.CopyRows({.x = a.q + nope_,
                      .ldx = q_head,
                      .y = a.q_absorbed + lora_,
                      .ldy = latent,
                      .m = tokens * heads_,
                      .n = rope_});
  c_.device.LatentAttention({.q = a.q_absorbed,
                             .ldq = heads_ * latent,
                             .cache = pass.kv->k(layer).raw(),
                             .kv_dtype = pass.kv->dtype(),
                             .cache_scale = DataOf(w.cache_scale),
                             .heads = heads_,
                             .lora = lora_,
                             .rope = rope_,
                             .scale = c_.config.attention.scale,
                             .bfloat16_rows = c_.config.quantization.bfloat16_rows,
                             .selected = pass.selects_keys ? pass.selected_keys() : nullptr,
                             .topk = c_.config.attention.index_topk,
                             .out = a.attended,
                             .ldo = heads_ * lora_},
                            *pass.sequences);
  c_.device.HeadLinear({.x = a.attended,
                        .ldx = heads_ * lora_,
                        .head_stride_x = lora_,
                        .w = w.v_up,
                        .transposed = true,
                        .y = a.values,
                        .ldy = heads_ * value_,
                        .head_stride_y = value_,
                        .m = tokens});
  if (a.gates != nullptr)
    c_.device.MultiplyRowsBySigmoid(a.values, a.gates, tokens * heads_, value_);
  c_.device.Linear({.x = a.values,
                    .ldx = heads_ * value_,
                    .w = w.o.w,
                    .bias = w.o.bias_data(),
                    .y = out,
                    .ldy = c_.config.hidden,
                    .m = tokens});
}

void LatentAttention::ProjectQueries(Pass& pass, const LatentAttentionWeights& w, int64_t layer,
                                     const float* x) const {
  const Arrays a = TakeArrays(pass);
  const int64_t tokens = pass.rows.tokens, hidden = c_.config.hidden;
  const int64_t q_lora = c_.config.attention.q_lora_rank, width = heads_ * (nope_ + rope_);
  if (q_lora == 0) {
    c_.device.Linear({.x = x,
                      .ldx = hidden,
                      .w = w.q.w,
                      .bias = w.q.bias_data(),
                      .y = a.q,
                      .ldy = width,
                      .m = tokens});
  } else {
    c_.device.Linear({.x = x,
                      .ldx = hidden,
                      .w = w.q_a.w,
                      .bias = w.q_a.bias_data(),
                      .y = a.q_a,
                      .ldy = q_lora,
                      .m = tokens});
    c_.device.RmsNorm({.x = a.q_a,
                       .ldx = q_lora,
                       .weight = w.q_a_norm.data<float>(),
                       .y = a.q_a,
                       .ldy = q_lora,
                       .m = tokens,
                       .n = q_lora,
                       .eps = kLatentNormEps});
    c_.device.Linear({.x = a.q_a,
                      .ldx = q_lora,
                      .w = w.q_b.w,
                      .bias = w.q_b.bias_data(),
                      .y = a.q,
                      .ldy = width,
                      .m = tokens});
  }
  if (a.gates != nullptr)
    c_.device.Linear({.x = x,
                      .ldx = hidden,
                      .w = w.gate.w,
                      .bias = w.gate.bias_data(),
                      .y = a.gates,
                      .ldy = heads_,
                      .m = tokens});
  if (c_.config.layers[layer].rope)
    c_.device.Rope({.x = a.q,
                    .ldx = width,
                    .m = tokens,
                    .heads = heads_,
                    .head_dim = nope_ + rope_,
                    .rotary_dim = rope_,
                    .rotary_offset = nope_,
                    .interleaved = c_.config.rope.interleaved,
                    .positions = pass.rows.positions,
                    .cos_sin = c_.cos_sin.data<float>()});
  if (const int64_t part = QueryScaleWidth(c_.config.attention))
    c_.device.Rope({.x = a.q,
                    .ldx = width,
                    .m = tokens,
                    .heads = width / part,
                    .head_dim = part,
                    .rotary_dim = part,
                    .positions = pass.rows.positions,
                    .cos_sin = c_.query_scale.data<float>()});
  if (!w.index || !pass.selects_keys) return;
  pass.inherits_keys ? InheritKeys(pass) : SelectKeys(pass, *w.index, layer, x, a);
}

void LatentAttention::InheritKeys(Pass& pass) const {
  // With only_logit_rows, both the rows of the previous pass and their keys are those of its logit
  // rows. All rows of this pass have logits.
  CHECK_EQ(pass.rows.tokens, pass.rows.logit_rows);
  c_.device.InheritKeys({.parents = pass.rows.hidden_row,
                         .topk = c_.config.attention.index_topk,
                         .selected = pass.selected_keys()},
                        *pass.sequences);
}

void LatentAttention::SelectKeys(Pass& pass, const IndexWeights& w, int64_t layer, const float* x,
                                 const Arrays& a) const {
  const AttentionConfig& config = c_.config.attention;
  const int64_t tokens = pass.rows.tokens, width = IndexWidth(config);
  c_.device.Linear({.x = a.q_a,
                    .ldx = config.q_lora_rank,
                    .w = w.q.w,
                    .bias = w.q.bias_data(),
                    .y = a.index_q,
                    .ldy = width,
                    .m = tokens});
  RotateIndex(pass, a.index_q, config.index_heads);
  // The published scores have the factors index_heads^-0.5 · index_head_dim^-0.5, which do not
  // change their order.
  c_.device.Linear({.x = x,
                    .ldx = c_.config.hidden,
                    .w = w.weights,
                    .y = a.index_weights,
                    .ldy = config.index_heads,
                    .m = tokens});
  c_.device.SelectKeys({.q = a.index_q,
                        .ldq = width,
                        .weights = a.index_weights,
                        .cache = pass.kv->v(layer).raw(),
                        .kv_dtype = pass.kv->dtype(),
                        .heads = config.index_heads,
                        .head_dim = config.index_head_dim,
                        .topk = config.index_topk,
                        .selected = pass.selected_keys()},
                       *pass.sequences);
}

void LatentAttention::StoreIndexKeys(Pass& pass, const IndexWeights& w, int64_t layer,
                                     const float* x, float* keys) const {
  const int64_t tokens = pass.rows.tokens, width = c_.config.attention.index_head_dim;
  c_.device.Linear({.x = x,
                    .ldx = c_.config.hidden,
                    .w = w.k.w,
                    .bias = w.k.bias_data(),
                    .y = keys,
                    .ldy = width,
                    .m = tokens});
  c_.device.LayerNorm({.x = keys,
                       .ldx = width,
                       .weight = w.k_norm.data<float>(),
                       .bias = w.k_norm.data<float>() + width,
                       .y = keys,
                       .ldy = width,
                       .m = tokens,
                       .n = width,
                       .eps = kIndexNormEps});
  RotateIndex(pass, keys, 1);
  c_.device.StoreKv({.x = keys,
                     .ldx = width,
                     .m = tokens,
                     .n = width,
                     .slots = pass.rows.slots,
                     .cache = pass.kv->v(layer).mutable_raw(),
                     .dtype = pass.kv->dtype()});
}

void LatentAttention::RotateIndex(Pass& pass, float* x, int64_t heads) const {
  const int64_t head = c_.config.attention.index_head_dim;
  c_.device.Rope({.x = x,
                  .ldx = heads * head,
                  .m = pass.rows.tokens,
                  .heads = heads,
                  .head_dim = head,
                  .rotary_dim = rope_,
                  .interleaved = c_.config.attention.index_interleaved,
                  .positions = pass.rows.positions,
                  .cos_sin = c_.cos_sin.data<float>()});
}

void LatentAttention::StoreLatents(Pass& pass, const LatentAttentionWeights& w, int64_t layer,
                                   const float* x) const {
  const Arrays a = TakeArrays(pass);
  const int64_t tokens = pass.rows.tokens, latent = lora_ + rope_;
  c_.device.Linear({.x = x,
                    .ldx = c_.config.hidden,
                    .w = w.kv_a.w,
                    .bias = w.kv_a.bias_data(),
                    .y = a.latent,
                    .ldy = latent,
                    .m = tokens});
  c_.device.RmsNorm({.x = a.latent,
                     .ldx = latent,
                     .weight = w.kv_a_norm.data<float>(),
                     .y = a.latent,
                     .ldy = latent,
                     .m = tokens,
                     .n = lora_,
                     .eps = kLatentNormEps});
  if (c_.config.layers[layer].rope)
    c_.device.Rope({.x = a.latent,
                    .ldx = latent,
                    .m = tokens,
                    .heads = 1,
                    .head_dim = latent,
                    .rotary_dim = rope_,
                    .rotary_offset = lora_,
                    .interleaved = c_.config.rope.interleaved,
                    .positions = pass.rows.positions,
                    .cos_sin = c_.cos_sin.data<float>()});
  c_.device.StoreKv({.x = a.latent,
                     .ldx = latent,
                     .m = tokens,
                     .n = latent,
                     .slots = pass.rows.slots,
                     .cache = pass.kv->k(layer).mutable_raw(),
                     .dtype = pass.kv->dtype(),
                     .scales = DataOf(w.cache_scale)});
  if (w.index) StoreIndexKeys(pass, *w.index, layer, x, a.index_k);
}

}  // namespace switchyard
