#include "model/layers/grouped_attention.h"

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/fused_ops.h"
#include "model/weights/shard.h"

namespace switchyard {
GroupedAttention::GroupedAttention(const ModelConfig& config, const Mesh& mesh, int64_t max_tokens,
                                   kernels::Device& device)
    : heads_(QueryHeads(config.attention, mesh).size()),
      kv_heads_(KvHeads(config.attention, mesh).size()),
      head_dim_(config.attention.head_dim),
      q_(device, max_tokens * (device.fused() ? heads_ + 2 * kv_heads_ : heads_) * head_dim_),
      k_(device, max_tokens * kv_heads_ * head_dim_),
      v_(device, k_.size()),
      attended_(device, max_tokens * heads_ * head_dim_),
      squares_(device,
               config.attention.qk_norm == AttentionConfig::QkNorm::kWhole ? 2 * max_tokens : 0) {}

void GroupedAttention::Forward(const LayerContext& c, const GroupedAttentionWeights& w,
                               int64_t layer, const float* x, const void* bf16_rows, float* out) {
  const int64_t q_width = heads_ * head_dim_;
  if (bf16_rows != nullptr) {
    ProjectAndStoreFused(c, w, layer, bf16_rows);
  } else {
    ProjectAndStore(c, w, layer, x);
  }
  c.device.Attention({.q = q_.data(),
                      .ldq = bf16_rows ? q_width + 2 * kv_heads_ * head_dim_ : q_width,
                      .k_cache = c.kv.k(layer).raw(),
                      .v_cache = c.kv.v(layer).raw(),
                      .kv_dtype = c.kv.dtype(),
                      .heads = heads_,
                      .kv_heads = kv_heads_,
                      .head_dim = head_dim_,
                      .scale = c.config.attention.scale,
                      .window = c.config.layers[layer].window,
                      .sinks = w.sinks.defined() ? w.sinks.data<float>() : nullptr,
                      .bfloat16_rows = c.config.quantization.bfloat16_rows,
                      .out = attended_.data(),
                      .ldo = q_width});
  c.device.Linear({.x = attended_.data(),
                   .ldx = q_width,
                   .w = w.o.w,
                   .bias = w.o.bias_data(),
                   .y = out,
                   .ldy = c.config.hidden,
                   .m = c.rows.tokens});
}

kernels::LinearParams GroupedAttention::Joined(const LayerContext& c,
                                               const GroupedAttentionWeights& w) {
  return {.w = w.qkv.w,
          .bias = w.qkv.bias_data(),
          .y = q_.data(),
          .ldy = (heads_ + 2 * kv_heads_) * head_dim_,
          .m = c.rows.tokens};
}

bool GroupedAttention::TakesBf16Input(const LayerContext& c, const GroupedAttentionWeights& w) {
  const kernels::FusedOps* fused = c.device.fused();
  // The fused op does not clamp. Models with clip_qkv norm whole projections and need other ops
  // anyway.
  return fused && w.qkv.w.defined() && c.config.attention.clip_qkv == 0.0f &&
         c.config.attention.qk_norm != AttentionConfig::QkNorm::kWhole &&
         fused->SupportsHeads(head_dim_, c.config.rope.rotary_dim) &&
         fused->ReadsBFloat16Rows(Joined(c, w));
}

void GroupedAttention::ProjectAndStoreFused(const LayerContext& c, const GroupedAttentionWeights& w,
                                            int64_t layer, const void* bf16_rows) {
  c.device.fused()->LinearOfBFloat16Rows(Joined(c, w), bf16_rows);
  const bool norm = c.config.attention.qk_norm == AttentionConfig::QkNorm::kPerHead;
  c.device.fused()->NormRopeStoreKv({.qkv = q_.data(),
                                     .q_norm = norm ? w.q_norm.data<float>() : nullptr,
                                     .k_norm = norm ? w.k_norm.data<float>() : nullptr,
                                     .m = c.rows.tokens,
                                     .heads = heads_,
                                     .kv_heads = kv_heads_,
                                     .head_dim = head_dim_,
                                     .eps = c.config.norm_eps,
                                     .rotary_dim = c.config.rope.rotary_dim,
                                     .interleaved = c.config.rope.interleaved,
                                     .positions = c.rows.positions,
                                     .cos_sin = c.cos_sin.data<float>(),
                                     .slots = c.rows.slots,
                                     .k_cache = c.kv.k(layer).mutable_raw(),
                                     .v_cache = c.kv.v(layer).mutable_raw(),
                                     .kv_dtype = c.kv.dtype()});
}

void GroupedAttention::ProjectAndStore(const LayerContext& c, const GroupedAttentionWeights& w,
                                       int64_t layer, const float* x) {
  const int64_t tokens = c.rows.tokens, hidden = c.config.hidden;
  const int64_t q_width = heads_ * head_dim_, kv_width = kv_heads_ * head_dim_;
  const auto projection = [&](const LinearWeight& p, float* y, int64_t width) {
    return kernels::LinearParams{
        .x = x, .ldx = hidden, .w = p.w, .bias = p.bias_data(), .y = y, .ldy = width, .m = tokens};
  };
  const kernels::LinearParams qkv[] = {projection(w.q, q_.data(), q_width),
                                       projection(w.k, k_.data(), kv_width),
                                       projection(w.v, v_.data(), kv_width)};
  c.device.LinearGroup(qkv);
  NormQueriesAndKeys(c, w, tokens);
  Clip(c, tokens);

  for (auto [rows, heads] : {std::pair{q_.data(), heads_}, std::pair{k_.data(), kv_heads_}}) {
    c.device.Rope({.x = rows,
                   .ldx = heads * head_dim_,
                   .m = tokens,
                   .heads = heads,
                   .head_dim = head_dim_,
                   .rotary_dim = c.config.rope.rotary_dim,
                   .interleaved = c.config.rope.interleaved,
                   .positions = c.rows.positions,
                   .cos_sin = c.cos_sin.data<float>()});
  }
  Tensor& k_cache = c.kv.k(layer);
  Tensor& v_cache = c.kv.v(layer);
  // With a scale per head, each head is a row of the cache.
  const bool by_head = kernels::HasPerRowScale(c.kv.dtype());
  if (by_head) FillHeadSlots(c);
  const int64_t rows_each = by_head ? kv_heads_ : 1;
  for (auto [rows, cache] : {std::pair{k_.data(), &k_cache}, std::pair{v_.data(), &v_cache}}) {
    c.device.StoreKv({.x = rows,
                      .ldx = kv_width / rows_each,
                      .m = tokens * rows_each,
                      .n = kv_width / rows_each,
                      .slots = by_head ? head_slots_.data() : c.rows.slots,
                      .cache = cache->mutable_raw(),
                      .dtype = c.kv.dtype()});
  }
}

void GroupedAttention::FillHeadSlots(const LayerContext& c) {
  CHECK(c.device.is_cpu());  // MakePlan rejects such caches on GPUs
  head_slots_.resize(c.rows.tokens * kv_heads_);
  for (int64_t t = 0; t < c.rows.tokens; ++t) {
    for (int64_t h = 0; h < kv_heads_; ++h) {
      head_slots_[t * kv_heads_ + h] = static_cast<int32_t>(c.rows.slots[t] * kv_heads_ + h);
    }
  }
}

void GroupedAttention::Clip(const LayerContext& c, int64_t tokens) {
  const float limit = c.config.attention.clip_qkv;
  if (limit == 0.0f) return;
  c.device.Clamp(q_.data(), tokens * heads_ * head_dim_, limit);
  c.device.Clamp(k_.data(), tokens * kv_heads_ * head_dim_, limit);
  c.device.Clamp(v_.data(), tokens * kv_heads_ * head_dim_, limit);
}

void GroupedAttention::NormQueriesAndKeys(const LayerContext& c, const GroupedAttentionWeights& w,
                                          int64_t tokens) {
  using QkNorm = AttentionConfig::QkNorm;
  const QkNorm kind = c.config.attention.qk_norm;
  if (kind == QkNorm::kNone) return;
  const auto norm = [&](Activations& x, const Tensor& weight, int64_t rows, int64_t n) {
    c.device.RmsNorm({.x = x.data(),
                      .ldx = n,
                      .weight = weight.data<float>(),
                      .y = x.data(),
                      .ldy = n,
                      .m = rows,
                      .n = n,
                      .eps = c.config.norm_eps});
  };
  const int64_t q_width = heads_ * head_dim_, kv_width = kv_heads_ * head_dim_;
  if (kind == QkNorm::kPerHead) {
    norm(q_, w.q_norm, tokens * heads_, head_dim_);
    norm(k_, w.k_norm, tokens * kv_heads_, head_dim_);
  } else if (c.groups.attn_tp->size() == 1) {
    norm(q_, w.q_norm, tokens, q_width);
    norm(k_, w.k_norm, tokens, kv_width);
  } else {  // QkNorm::kWhole: the mean includes the heads of other ranks
    // Replicated key heads are weighted by the number of ranks that hold them.
    const auto scale = [&](Activations& x, int64_t n, float* squares, const Tensor& weight) {
      c.device.ScaleBySquares({.x = x.data(),
                               .m = tokens,
                               .n = n,
                               .squares = squares,
                               .total = n * c.groups.attn_tp->size(),
                               .eps = c.config.norm_eps,
                               .weight = weight.data<float>()});
    };
    float* q_squares = squares_.data();
    float* k_squares = q_squares + tokens;
    c.device.SumSquares({.x = q_.data(), .m = tokens, .n = q_width, .squares = q_squares});
    c.device.SumSquares({.x = k_.data(), .m = tokens, .n = kv_width, .squares = k_squares});
    c.groups.attn_tp->AllReduceSum(q_squares, 2 * tokens);
    scale(q_, q_width, q_squares, w.q_norm);
    scale(k_, kv_width, k_squares, w.k_norm);
  }
}

}  // namespace switchyard
