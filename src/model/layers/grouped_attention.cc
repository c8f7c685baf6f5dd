#include "model/layers/grouped_attention.h"

#include <cmath>

#include "model/weights/shard.h"

namespace switchyard {
namespace {

void SumSquares(const float* x, int64_t rows, int64_t n, float* out) {
  for (int64_t t = 0; t < rows; ++t) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[t * n + i]) * x[t * n + i];
    out[t] = static_cast<float>(sum);
  }
}

// x[t] *= weight / sqrt(mean + eps), where the mean is over `total` elements of which this rank
// holds n.
void ScaleRows(float* x, int64_t rows, int64_t n, const float* squares, double total, float eps,
               const float* weight) {
  for (int64_t t = 0; t < rows; ++t) {
    const auto inverse = static_cast<float>(1.0 / std::sqrt(squares[t] / total + eps));
    for (int64_t i = 0; i < n; ++i) x[t * n + i] = x[t * n + i] * inverse * weight[i];
  }
}

}  // namespace

GroupedAttention::GroupedAttention(const ModelConfig& config, const Mesh& mesh, int64_t max_tokens)
    : heads_(QueryHeads(config.attention, mesh).size()),
      kv_heads_(KvHeads(config.attention, mesh).size()),
      head_dim_(config.attention.head_dim),
      q_(max_tokens * heads_ * head_dim_),
      k_(max_tokens * kv_heads_ * head_dim_),
      v_(k_.size()),
      attended_(q_.size()),
      squares_(config.attention.qk_norm == AttentionConfig::QkNorm::kWhole ? 2 * max_tokens : 0) {}

void GroupedAttention::Forward(const LayerContext& c, const GroupedAttentionWeights& w,
                               int64_t layer, const float* x, float* out) {
  const int64_t tokens = c.batch.num_tokens(), hidden = c.config.hidden;
  const int64_t q_width = heads_ * head_dim_, kv_width = kv_heads_ * head_dim_;
  const auto projection = [&](const LinearWeight& p, float* y, int64_t width) {
    return kernels::LinearParams{
        .x = x, .ldx = hidden, .w = p.w, .bias = p.bias_data(), .y = y, .ldy = width, .m = tokens};
  };
  const kernels::LinearParams qkv[] = {projection(w.q, q_.data(), q_width),
                                       projection(w.k, k_.data(), kv_width),
                                       projection(w.v, v_.data(), kv_width)};
  kernels::LinearGroup(qkv, c.pool);
  NormQueriesAndKeys(c, w, tokens);

  for (auto [rows, heads] : {std::pair{q_.data(), heads_}, std::pair{k_.data(), kv_heads_}}) {
    kernels::Rope({.x = rows,
                   .ldx = heads * head_dim_,
                   .m = tokens,
                   .heads = heads,
                   .head_dim = head_dim_,
                   .rotary_dim = c.config.rope.rotary_dim,
                   .interleaved = c.config.rope.interleaved,
                   .positions = c.batch.positions.data(),
                   .cos_sin = c.cos_sin.data<float>()},
                  c.pool);
  }
  Tensor& k_cache = c.kv.k(layer);
  Tensor& v_cache = c.kv.v(layer);
  for (auto [rows, cache] : {std::pair{k_.data(), &k_cache}, std::pair{v_.data(), &v_cache}}) {
    kernels::StoreKv({.x = rows,
                      .ldx = kv_width,
                      .m = tokens,
                      .n = kv_width,
                      .slots = c.batch.slots.data(),
                      .cache = cache->mutable_raw(),
                      .dtype = c.kv.dtype()},
                     c.pool);
  }
  kernels::Attention({.q = q_.data(),
                      .ldq = q_width,
                      .k_cache = k_cache.raw(),
                      .v_cache = v_cache.raw(),
                      .kv_dtype = c.kv.dtype(),
                      .heads = heads_,
                      .kv_heads = kv_heads_,
                      .head_dim = head_dim_,
                      .page_size = c.kv.page_size(),
                      .scale = c.config.attention.scale,
                      .window = c.config.layers[layer].window,
                      .sinks = w.sinks.defined() ? w.sinks.data<float>() : nullptr,
                      .sequences = c.batch.sequences,
                      .out = attended_.data(),
                      .ldo = q_width},
                     c.pool);
  kernels::Linear({.x = attended_.data(),
                   .ldx = q_width,
                   .w = w.o.w,
                   .bias = w.o.bias_data(),
                   .y = out,
                   .ldy = hidden,
                   .m = tokens},
                  c.pool);
}

void GroupedAttention::NormQueriesAndKeys(const LayerContext& c, const GroupedAttentionWeights& w,
                                          int64_t tokens) {
  using QkNorm = AttentionConfig::QkNorm;
  const QkNorm kind = c.config.attention.qk_norm;
  if (kind == QkNorm::kNone) return;
  const auto norm = [&](Activations& x, const Tensor& weight, int64_t rows, int64_t n) {
    kernels::RmsNorm({.x = x.data(),
                      .ldx = n,
                      .weight = weight.data<float>(),
                      .y = x.data(),
                      .ldy = n,
                      .m = rows,
                      .n = n,
                      .eps = c.config.norm_eps},
                     c.pool);
  };
  const int64_t q_width = heads_ * head_dim_, kv_width = kv_heads_ * head_dim_;
  if (kind == QkNorm::kPerHead) {
    norm(q_, w.q_norm, tokens * heads_, head_dim_);
    norm(k_, w.k_norm, tokens * kv_heads_, head_dim_);
  } else if (c.comm.attn_tp->size() == 1) {
    norm(q_, w.q_norm, tokens, q_width);
    norm(k_, w.k_norm, tokens, kv_width);
  } else {  // the mean runs over heads that other ranks hold
    float* q_squares = squares_.data();
    float* k_squares = q_squares + tokens;
    SumSquares(q_.data(), tokens, q_width, q_squares);
    SumSquares(k_.data(), tokens, kv_width, k_squares);
    c.comm.attn_tp->AllReduceSum(q_squares, 2 * tokens);
    const double q_total = static_cast<double>(q_width) * c.comm.attn_tp->size();
    const double k_total =
        static_cast<double>(kv_width) * c.comm.attn_tp->size();  // counts copies, as the sum does
    ScaleRows(q_.data(), tokens, q_width, q_squares, q_total, c.config.norm_eps,
              w.q_norm.data<float>());
    ScaleRows(k_.data(), tokens, kv_width, k_squares, k_total, c.config.norm_eps,
              w.k_norm.data<float>());
  }
}

}  // namespace switchyard
