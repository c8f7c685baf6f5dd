#include "model/layers/grouped_attention.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "model/rope.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

// The fused op cannot clamp, norm a whole projection, norm after the rotation, scale queries or
// values, or skip the rotation or the norms in some layers. Keys and values have one width, and all
// layers have the same KV heads and rotation.
bool HasPlainHeads(const ModelConfig& config) {
  const AttentionConfig& a = config.attention;
  return !a.gate_in_q && a.value_dim() == a.head_dim && a.value_scale == 1.0f &&
         !config.window_rope &&
         std::ranges::all_of(config.layers,
                             [](const LayerConfig& layer) { return layer.kv_heads == 0; }) &&
         a.clip_qkv == 0.0f && a.qk_norm != AttentionConfig::QkNorm::kWhole && !a.norm_after_rope &&
         a.query_scale_beta == 0.0 && std::ranges::all_of(config.layers, &LayerConfig::rope) &&
         std::ranges::all_of(config.layers, &LayerConfig::qk_norm);
}

}  // namespace

GroupedAttention::GroupedAttention(const LayerContext& context)
    : c_(context),
      heads_(QueryHeads(context.config.attention, context.mesh).size()),
      kv_heads_(MostKvHeads(context.config, context.mesh)),
      head_dim_(context.config.attention.head_dim),
      value_dim_(context.config.attention.value_dim()),
      plain_heads_(HasPlainHeads(context.config)) {}

int64_t GroupedAttention::KvHeadsOf(int64_t layer) const {
  return KvHeads(c_.config, layer, c_.mesh).size();
}

int64_t GroupedAttention::ScratchFloats(int64_t max_tokens) const {
  const int64_t q_heads = c_.device.fused() ? heads_ + 2 * kv_heads_ : heads_;
  const int64_t widest = std::max(head_dim_, value_dim_);
  return LayerScratch::Floats({max_tokens * q_heads * widest, max_tokens * kv_heads_ * head_dim_,
                               max_tokens * kv_heads_ * value_dim_, max_tokens * heads_ * widest,
                               2 * max_tokens, max_tokens * kv_heads_, 2 * GateFloats(max_tokens),
                               GateFloats(max_tokens)});
}

GroupedAttention::Arrays GroupedAttention::TakeArrays(Pass& pass) const {
  const int64_t tokens = pass.rows.tokens;
  const int64_t q_heads = c_.device.fused() ? heads_ + 2 * kv_heads_ : heads_;
  const int64_t widest = std::max(head_dim_, value_dim_);
  LayerScratch& scratch = pass.scratch;
  scratch.Reset();
  Arrays a{};
  a.q = scratch.Take(tokens * q_heads * widest);
  a.k = scratch.Take(tokens * kv_heads_ * head_dim_);
  a.v = scratch.Take(tokens * kv_heads_ * value_dim_);
  a.attended = scratch.Take(tokens * heads_ * widest);
  a.squares = scratch.Take(2 * tokens);
  a.head_slots = scratch.TakeInts(tokens * kv_heads_);
  a.joint = scratch.Take(2 * GateFloats(tokens));
  a.gates = scratch.Take(GateFloats(tokens));
  return a;
}

void GroupedAttention::Project(Pass& pass, const GroupedAttentionWeights& w, int64_t layer,
                               const float* x, const kernels::RoundedRows& rounded) const {
  const Arrays a = TakeArrays(pass);
  if (UsesFusedOps(pass.rows.tokens, w)) {
    ProjectAndStoreFused(pass, a, w, layer, x, rounded);
  } else {
    ProjectAndStore(pass, a, w, layer, x);
  }
}

void GroupedAttention::KeepLogitRows(Pass& pass) const {
  // The arrays that Project has filled. Queries are the first array, so they have the same address
  // for any number of rows.
  const Arrays a = TakeArrays(pass);
  const int64_t width = heads_ * head_dim_, rows = pass.rows.logit_rows;
  if (rows == pass.rows.tokens) return;
  c_.device.CopyRows({.x = a.q,
                      .ldx = width,
                      .rows = pass.rows.logit_row,
                      .y = a.attended,
                      .ldy = width,
                      .m = rows,
                      .n = width});
  c_.device.CopyRows(
      {.x = a.attended, .ldx = width, .y = a.q, .ldy = width, .m = rows, .n = width});
}

void GroupedAttention::Attend(Pass& pass, const GroupedAttentionWeights& w, int64_t layer,
                              float* out) const {
  const int64_t q_width = heads_ * head_dim_, out_width = heads_ * value_dim_;
  const bool fused_ops = UsesFusedOps(pass.rows.tokens, w);
  const Arrays a = TakeArrays(pass);  // the arrays that Project has filled
  KvStorage& kv = *pass.kv;
  kernels::AttentionParams attention = {
      .q = a.q,
      .ldq = fused_ops ? q_width + 2 * kv_heads_ * head_dim_ : q_width,
      .bf16_queries = fused_ops && PassesBf16Queries(kv),
      .k_cache = kv.k(layer).raw(),
      .v_cache = kv.v(layer).raw(),
      .kv_dtype = kv.dtype(),
      .k_scales = DataOf(w.k_scales),
      .v_scales = DataOf(w.v_scales),
      .heads = heads_,
      .kv_heads = KvHeadsOf(layer),
      .head_dim = head_dim_,
      .v_dim = value_dim_,
      .value_scale = c_.config.attention.value_scale,
      .scale = c_.config.attention.scale,
      .window = c_.config.layers[layer].window,
      .chunk = c_.config.layers[layer].chunk,
      .sinks = DataOf(w.sinks),
      .bfloat16_rows = c_.config.quantization.bfloat16_rows,
      .out = a.attended,
      .ldo = out_width};
  const kernels::LinearParams project = {.x = a.attended,
                                         .ldx = out_width,
                                         .w = w.o.w,
                                         .bias = w.o.bias_data(),
                                         .y = out,
                                         .ldy = c_.config.hidden,
                                         .m = pass.rows.tokens};
  kernels::FusedOps* fused = c_.device.fused();
  const bool bf16_out = fused && fused->AttentionToBFloat16(attention) &&
                        !c_.config.attention.gate &&
                        fused->InputFormOf(project) == kernels::RoundedForm::kBFloat16;
  if (bf16_out) {
    attention.bf16_out = std::exchange(attention.out, nullptr);
    c_.device.Attention(attention, *pass.sequences);
    return fused->LinearOfRoundedRows(
        project, {.form = kernels::RoundedForm::kBFloat16, .data = attention.bf16_out});
  }
  c_.device.Attention(attention, *pass.sequences);
  if (c_.config.attention.gate) Gate(pass, a, w.gate);
  c_.device.Linear(project);
}

kernels::LinearParams GroupedAttention::Joined(int64_t tokens, const GroupedAttentionWeights& w,
                                               float* qkv) const {
  return {.w = w.qkv.w,
          .bias = w.qkv.bias_data(),
          .y = qkv,
          .ldy = (heads_ + 2 * kv_heads_) * head_dim_,
          .m = tokens};
}

bool GroupedAttention::UsesFusedOps(int64_t tokens, const GroupedAttentionWeights& w) const {
  const kernels::FusedOps* fused = c_.device.fused();
  return fused && w.qkv.w.defined() && plain_heads_ &&
         fused->SupportsHeads(head_dim_, c_.config.rope.rotary_dim) &&
         (w.qkv.w.format == WeightFormat::kFp8Block ||
          InputForm(tokens, w) == kernels::RoundedForm::kBFloat16);
}

kernels::RoundedForm GroupedAttention::InputForm(int64_t tokens,
                                                 const GroupedAttentionWeights& w) const {
  return c_.device.fused()->InputFormOf(Joined(tokens, w, nullptr));
}

kernels::RoundedForm GroupedAttention::RoundedInput(int64_t tokens,
                                                    const GroupedAttentionWeights& w) const {
  // The gate's product reads the float32 rows too (Gate).
  if (w.gate.w.defined() || !UsesFusedOps(tokens, w)) return kernels::RoundedForm::kNone;
  return InputForm(tokens, w);
}

void GroupedAttention::ProjectAndStoreFused(Pass& pass, const Arrays& a,
                                            const GroupedAttentionWeights& w, int64_t layer,
                                            const float* x,
                                            const kernels::RoundedRows& rounded) const {
  KvStorage& kv = *pass.kv;
  kernels::LinearParams product = Joined(pass.rows.tokens, w, a.q);
  if (rounded.form != kernels::RoundedForm::kNone) {
    c_.device.fused()->LinearOfRoundedRows(product, rounded);
  } else {
    product.x = x;
    product.ldx = c_.config.attention_input_width();
    c_.device.Linear(product);
  }
  const bool norm = c_.config.attention.qk_norm == AttentionConfig::QkNorm::kPerHead;
  c_.device.fused()->NormRopeStoreKv({.qkv = a.q,
                                      .q_norm = norm ? w.q_norm.data<float>() : nullptr,
                                      .k_norm = norm ? w.k_norm.data<float>() : nullptr,
                                      .m = pass.rows.tokens,
                                      .heads = heads_,
                                      .kv_heads = kv_heads_,
                                      .head_dim = head_dim_,
                                      .eps = c_.config.norm_eps,
                                      .rotary_dim = c_.config.rope.rotary_dim,
                                      .interleaved = c_.config.rope.interleaved,
                                      .positions = pass.rows.positions,
                                      .cos_sin = c_.cos_sin.data<float>(),
                                      .slots = pass.rows.slots,
                                      .k_cache = kv.k(layer).mutable_raw(),
                                      .v_cache = kv.v(layer).mutable_raw(),
                                      .kv_dtype = kv.dtype(),
                                      .k_scales = DataOf(w.k_scales),
                                      .v_scales = DataOf(w.v_scales),
                                      .bf16_queries = PassesBf16Queries(kv)});
}

bool GroupedAttention::PassesBf16Queries(const KvStorage& kv) const {
  return c_.device.fused()->AttentionToBFloat16({.kv_dtype = kv.dtype(), .head_dim = head_dim_});
}

void GroupedAttention::ProjectAndStore(Pass& pass, const Arrays& a,
                                       const GroupedAttentionWeights& w, int64_t layer,
                                       const float* x) const {
  KvStorage& kv = *pass.kv;
  const int64_t tokens = pass.rows.tokens, input = c_.config.attention_input_width();
  const int64_t kv_heads = KvHeadsOf(layer), q_width = heads_ * head_dim_;
  const int64_t k_width = kv_heads * head_dim_, v_width = kv_heads * value_dim_;
  const auto projection = [&](const LinearWeight& p, float* y, int64_t width) {
    return kernels::LinearParams{
        .x = x, .ldx = input, .w = p.w, .bias = p.bias_data(), .y = y, .ldy = width, .m = tokens};
  };
  const bool joint = c_.config.attention.gate_in_q;
  const kernels::LinearParams qkv[] = {
      projection(w.q, joint ? a.joint : a.q, (joint ? 2 : 1) * q_width),
      projection(w.k, a.k, k_width), projection(w.v, a.v, v_width)};
  c_.device.LinearGroup(qkv);
  if (joint) SplitGates(pass, a);
  const LayerConfig& of_layer = c_.config.layers[layer];
  const bool norm_last = c_.config.attention.norm_after_rope;
  if (of_layer.qk_norm && !norm_last) NormQueriesAndKeys(a, w, tokens, kv_heads);
  Clip(a, tokens, kv_heads);
  if (of_layer.rope) Rotate(pass, a, layer);
  if (of_layer.qk_norm && norm_last) NormQueriesAndKeys(a, w, tokens, kv_heads);
  if (!of_layer.rope) ScaleQueries(pass, a);
  // If the cache has a scale per head, each head is stored as a row of the cache.
  const bool by_head = kernels::HasPerRowScale(kv.dtype());
  if (by_head) FillHeadSlots(pass, kv_heads, a.head_slots);
  const int64_t rows_each = by_head ? kv_heads : 1;
  const auto store = [&](const float* rows, int64_t width, const Tensor& scales, Tensor& cache) {
    c_.device.StoreKv({.x = rows,
                       .ldx = width / rows_each,
                       .m = tokens * rows_each,
                       .n = width / rows_each,
                       .slots = by_head ? a.head_slots : pass.rows.slots,
                       .cache = cache.mutable_raw(),
                       .dtype = kv.dtype(),
                       .scales = DataOf(scales),
                       .heads = by_head ? 1 : kv_heads});
  };
  store(a.k, k_width, w.k_scales, kv.k(layer));
  store(a.v, v_width, w.v_scales, kv.v(layer));
}

int64_t GroupedAttention::GateFloats(int64_t tokens) const {
  return c_.config.attention.gate_in_q ? tokens * heads_ * head_dim_ : 0;
}

void GroupedAttention::SplitGates(const Pass& pass, const Arrays& a) const {
  for (auto [from, to] : {std::pair{a.joint, a.q}, std::pair{a.joint + head_dim_, a.gates}})
    c_.device.CopyRows({.x = from,
                        .ldx = 2 * head_dim_,
                        .y = to,
                        .ldy = head_dim_,
                        .m = pass.rows.tokens * heads_,
                        .n = head_dim_});
}

void GroupedAttention::Gate(const Pass& pass, const Arrays& a, const LinearWeight& gate) const {
  const int64_t tokens = pass.rows.tokens, width = heads_ * value_dim_;
  if (c_.config.attention.gate_in_q)
    return c_.device.MultiplyBySigmoid(a.attended, a.gates, tokens * width);
  float* const gates = a.q;  // the queries are not needed any more
  c_.device.Linear({.x = pass.normed.data(),
                    .ldx = c_.config.hidden,
                    .w = gate.w,
                    .bias = gate.bias_data(),
                    .y = gates,
                    .ldy = width,
                    .m = tokens});
  c_.device.MultiplyBySigmoid(a.attended, gates, tokens * width);
}

void GroupedAttention::Rotate(const Pass& pass, const Arrays& a, int64_t layer) const {
  const RopeConfig& rope = c_.config.rope_of(layer);
  for (auto [rows, heads] : {std::pair{a.q, heads_}, std::pair{a.k, KvHeadsOf(layer)}}) {
    c_.device.Rope({.x = rows,
                    .ldx = heads * head_dim_,
                    .m = pass.rows.tokens,
                    .heads = heads,
                    .head_dim = head_dim_,
                    .rotary_dim = rope.rotary_dim,
                    .interleaved = rope.interleaved,
                    .positions = pass.rows.positions,
                    .cos_sin = c_.cos_sin_of(layer).data<float>()});
  }
}

void GroupedAttention::FillHeadSlots(const Pass& pass, int64_t kv_heads,
                                     int32_t* head_slots) const {
  CHECK(c_.device.is_cpu());  // MakePlan rejects such caches on GPUs
  for (int64_t t = 0; t < pass.rows.tokens; ++t) {
    for (int64_t h = 0; h < kv_heads; ++h) {
      head_slots[t * kv_heads + h] = static_cast<int32_t>(pass.rows.slots[t] * kv_heads + h);
    }
  }
}

void GroupedAttention::ScaleQueries(const Pass& pass, const Arrays& a) const {
  const int64_t part = QueryScaleWidth(c_.config.attention), width = heads_ * head_dim_;
  if (part == 0) return;
  c_.device.Rope({.x = a.q,
                  .ldx = width,
                  .m = pass.rows.tokens,
                  .heads = width / part,
                  .head_dim = part,
                  .rotary_dim = part,
                  .positions = pass.rows.positions,
                  .cos_sin = c_.query_scale.data<float>()});
}

void GroupedAttention::Clip(const Arrays& a, int64_t tokens, int64_t kv_heads) const {
  const float limit = c_.config.attention.clip_qkv;
  if (limit == 0.0f) return;
  c_.device.Clamp(a.q, tokens * heads_ * head_dim_, limit);
  c_.device.Clamp(a.k, tokens * kv_heads * head_dim_, limit);
  c_.device.Clamp(a.v, tokens * kv_heads * value_dim_, limit);
}

void GroupedAttention::NormQueriesAndKeys(const Arrays& a, const GroupedAttentionWeights& w,
                                          int64_t tokens, int64_t kv_heads) const {
  using QkNorm = AttentionConfig::QkNorm;
  const QkNorm kind = c_.config.attention.qk_norm;
  if (kind == QkNorm::kNone) return;
  const auto norm = [&](float* x, const Tensor& weight, int64_t rows, int64_t n) {
    c_.device.RmsNorm({.x = x,
                       .ldx = n,
                       .weight = weight.data<float>(),
                       .y = x,
                       .ldy = n,
                       .m = rows,
                       .n = n,
                       .eps = c_.config.norm_eps});
  };
  const int64_t q_width = heads_ * head_dim_, kv_width = kv_heads * head_dim_;
  if (kind == QkNorm::kPerHead) {
    norm(a.q, w.q_norm, tokens * heads_, head_dim_);
    norm(a.k, w.k_norm, tokens * kv_heads, head_dim_);
  } else if (c_.groups.attn_tp->size() == 1) {
    norm(a.q, w.q_norm, tokens, q_width);
    norm(a.k, w.k_norm, tokens, kv_width);
  } else {  // QkNorm::kWhole: the mean includes the heads of other ranks
    // Replicated key heads are weighted by the number of ranks that hold them.
    const auto scale = [&](float* x, int64_t n, float* squares, const Tensor& weight) {
      c_.device.ScaleBySquares({.x = x,
                                .m = tokens,
                                .n = n,
                                .squares = squares,
                                .total = n * c_.groups.attn_tp->size(),
                                .eps = c_.config.norm_eps,
                                .weight = weight.data<float>()});
    };
    float* q_squares = a.squares;
    float* k_squares = q_squares + tokens;
    c_.device.SumSquares({.x = a.q, .m = tokens, .n = q_width, .squares = q_squares});
    c_.device.SumSquares({.x = a.k, .m = tokens, .n = kv_width, .squares = k_squares});
    c_.groups.attn_tp->AllReduceSum(q_squares, 2 * tokens);
    scale(a.q, q_width, q_squares, w.q_norm);
    scale(a.k, kv_width, k_squares, w.k_norm);
  }
}

}  // namespace switchyard
