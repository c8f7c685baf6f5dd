#include "model/layers/latent_attention.h"

#include "model/weights/shard.h"

namespace switchyard {
namespace {

// For the norms inside MLA: DeepSeek's code uses 1e-6 regardless of rms_norm_eps
// (Moonlight's is 1e-5).
constexpr float kLatentNormEps = 1e-6f;

}  // namespace

LatentAttention::LatentAttention(const ModelConfig& config, const Mesh& mesh, int64_t max_tokens,
                                 kernels::Device& device)
    : heads_(QueryHeads(config.attention, mesh).size()),
      nope_(config.attention.qk_nope_head_dim),
      rope_(config.attention.qk_rope_head_dim),
      lora_(config.attention.kv_lora_rank),
      value_(config.attention.v_head_dim),
      q_a_(device, max_tokens * config.attention.q_lora_rank),
      q_(device, max_tokens * heads_ * (nope_ + rope_)),
      latent_(device, max_tokens * (lora_ + rope_)),
      q_absorbed_(device, max_tokens * heads_ * (lora_ + rope_)),
      attended_(device, max_tokens * heads_ * lora_),
      values_(device, max_tokens * heads_ * value_) {}

void LatentAttention::Forward(const LayerContext& c, const LatentAttentionWeights& w, int64_t layer,
                              const float* x, float* out) {
  const int64_t tokens = c.rows.tokens;
  const int64_t q_head = nope_ + rope_, latent = lora_ + rope_;
  ProjectQueries(c, w, x);
  StoreLatents(c, w, layer, x);

  c.device.HeadLinear({.x = q_.data(),
                       .ldx = heads_ * q_head,
                       .head_stride_x = q_head,
                       .w = w.k_up,
                       .transposed = false,
                       .y = q_absorbed_.data(),
                       .ldy = heads_ * latent,
                       .head_stride_y = latent,
                       .m = tokens});
  c.device.CopyRows({.x = q_.data() + nope_,
                     .ldx = q_head,
                     .y = q_absorbed_.data() + lora_,
                     .ldy = latent,
                     .m = tokens * heads_,
                     .n = rope_});
  c.device.LatentAttention({.q = q_absorbed_.data(),
                            .ldq = heads_ * latent,
                            .cache = c.kv.k(layer).raw(),
                            .kv_dtype = c.kv.dtype(),
                            .heads = heads_,
                            .lora = lora_,
                            .rope = rope_,
                            .scale = c.config.attention.scale,
                            .bfloat16_rows = c.config.quantization.bfloat16_rows,
                            .out = attended_.data(),
                            .ldo = heads_ * lora_});
  c.device.HeadLinear({.x = attended_.data(),
                       .ldx = heads_ * lora_,
                       .head_stride_x = lora_,
                       .w = w.v_up,
                       .transposed = true,
                       .y = values_.data(),
                       .ldy = heads_ * value_,
                       .head_stride_y = value_,
                       .m = tokens});
  c.device.Linear({.x = values_.data(),
                   .ldx = heads_ * value_,
                   .w = w.o.w,
                   .bias = w.o.bias_data(),
                   .y = out,
                   .ldy = c.config.hidden,
                   .m = tokens});
}

void LatentAttention::ProjectQueries(const LayerContext& c, const LatentAttentionWeights& w,
                                     const float* x) {
  const int64_t tokens = c.rows.tokens, hidden = c.config.hidden;
  const int64_t q_lora = c.config.attention.q_lora_rank, width = heads_ * (nope_ + rope_);
  if (q_lora == 0) {
    c.device.Linear({.x = x,
                     .ldx = hidden,
                     .w = w.q.w,
                     .bias = w.q.bias_data(),
                     .y = q_.data(),
                     .ldy = width,
                     .m = tokens});
  } else {
    c.device.Linear({.x = x,
                     .ldx = hidden,
                     .w = w.q_a.w,
                     .bias = w.q_a.bias_data(),
                     .y = q_a_.data(),
                     .ldy = q_lora,
                     .m = tokens});
    c.device.RmsNorm({.x = q_a_.data(),
                      .ldx = q_lora,
                      .weight = w.q_a_norm.data<float>(),
                      .y = q_a_.data(),
                      .ldy = q_lora,
                      .m = tokens,
                      .n = q_lora,
                      .eps = kLatentNormEps});
    c.device.Linear({.x = q_a_.data(),
                     .ldx = q_lora,
                     .w = w.q_b.w,
                     .bias = w.q_b.bias_data(),
                     .y = q_.data(),
                     .ldy = width,
                     .m = tokens});
  }
  c.device.Rope({.x = q_.data(),
                 .ldx = width,
                 .m = tokens,
                 .heads = heads_,
                 .head_dim = nope_ + rope_,
                 .rotary_dim = rope_,
                 .rotary_offset = nope_,
                 .interleaved = c.config.rope.interleaved,
                 .positions = c.rows.positions,
                 .cos_sin = c.cos_sin.data<float>()});
}

void LatentAttention::StoreLatents(const LayerContext& c, const LatentAttentionWeights& w,
                                   int64_t layer, const float* x) {
  const int64_t tokens = c.rows.tokens, latent = lora_ + rope_;
  c.device.Linear({.x = x,
                   .ldx = c.config.hidden,
                   .w = w.kv_a.w,
                   .bias = w.kv_a.bias_data(),
                   .y = latent_.data(),
                   .ldy = latent,
                   .m = tokens});
  c.device.RmsNorm({.x = latent_.data(),
                    .ldx = latent,
                    .weight = w.kv_a_norm.data<float>(),
                    .y = latent_.data(),
                    .ldy = latent,
                    .m = tokens,
                    .n = lora_,
                    .eps = kLatentNormEps});
  c.device.Rope({.x = latent_.data(),
                 .ldx = latent,
                 .m = tokens,
                 .heads = 1,
                 .head_dim = latent,
                 .rotary_dim = rope_,
                 .rotary_offset = lora_,
                 .interleaved = c.config.rope.interleaved,
                 .positions = c.rows.positions,
                 .cos_sin = c.cos_sin.data<float>()});
  c.device.StoreKv({.x = latent_.data(),
                    .ldx = latent,
                    .m = tokens,
                    .n = latent,
                    .slots = c.rows.slots,
                    .cache = c.kv.k(layer).mutable_raw(),
                    .dtype = c.kv.dtype()});
}

}  // namespace switchyard
