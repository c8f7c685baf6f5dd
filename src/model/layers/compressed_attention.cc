#include "model/layers/compressed_attention.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/compressed.h"
#include "model/layers/scratch.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

// Elements of a row that gives entries or index entries, with two series.
int64_t SeriesWidth(const AttentionConfig& a) { return 2 * std::max(a.head_dim, a.index_head_dim); }
int64_t EntryWidth(const AttentionConfig& a) { return std::max(a.head_dim, a.index_head_dim); }
int64_t GroupsOf(const AttentionConfig& a, int64_t heads) {
  return heads * a.output_groups / a.heads;
}

}  // namespace

int64_t CompressedScratchFloats(const AttentionConfig& a, int64_t heads, int64_t tokens) {
  return LayerScratch::Floats(
      {tokens * a.q_lora_rank, tokens * heads * a.head_dim, tokens * a.head_dim,
       tokens * SeriesWidth(a), tokens * SeriesWidth(a), tokens * EntryWidth(a),
       tokens * a.index_heads * a.index_head_dim, tokens * a.index_heads,
       tokens * heads * a.head_dim, tokens * GroupsOf(a, heads) * a.output_rank});
}

CompressedAttention::CompressedAttention(const LayerContext& context)
    : c_(context),
      a_(context.config.attention),
      heads_(QueryHeads(context.config.attention, context.mesh).size()),
      groups_(GroupsOf(a_, heads_)) {
  CHECK(c_.device.compressed() != nullptr);
}

int64_t CompressedAttention::ScratchFloats(int64_t max_tokens) const {
  return CompressedScratchFloats(a_, heads_, max_tokens);
}

CompressedAttention::Arrays CompressedAttention::TakeArrays(Pass& pass) const {
  const int64_t tokens = pass.rows.tokens;
  LayerScratch& scratch = pass.scratch;
  scratch.Reset();
  Arrays a{};
  a.q_a = scratch.Take(tokens * a_.q_lora_rank);
  a.q = scratch.Take(tokens * heads_ * a_.head_dim);
  a.kv = scratch.Take(tokens * a_.head_dim);
  a.rows = scratch.Take(tokens * SeriesWidth(a_));
  a.gates = scratch.Take(tokens * SeriesWidth(a_));
  a.entries = scratch.Take(tokens * EntryWidth(a_));
  a.index_q = scratch.Take(tokens * a_.index_heads * a_.index_head_dim);
  a.index_weights = scratch.Take(tokens * a_.index_heads);
  a.attended = scratch.Take(tokens * heads_ * a_.head_dim);
  a.grouped = scratch.Take(tokens * groups_ * a_.output_rank);
  return a;
}

void CompressedAttention::Run(Pass& pass, const CompressedAttentionWeights& w, int64_t layer,
                              const float* x, float* out) const {
  const Arrays a = TakeArrays(pass);
  const int64_t tokens = pass.rows.tokens;
  Project(pass, a, w, layer, x);
  if (w.entries) AddToBlocks(pass, a, *w.entries, layer, /*index=*/false, x);
  if (w.index_entries) {
    AddToBlocks(pass, a, *w.index_entries, layer, /*index=*/true, x);
    SelectEntries(pass, a, w, layer, x);
  }
  Attend(pass, a, w, layer);
  const int64_t of_group = heads_ / groups_ * a_.head_dim;
  c_.device.HeadLinear({.x = a.attended,
                        .ldx = heads_ * a_.head_dim,
                        .head_stride_x = of_group,
                        .w = w.o_a,
                        .transposed = true,
                        .y = a.grouped,
                        .ldy = groups_ * a_.output_rank,
                        .head_stride_y = a_.output_rank,
                        .m = tokens});
  Multiply(a.grouped, w.o, tokens, out);
}

void CompressedAttention::Project(Pass& pass, const Arrays& a, const CompressedAttentionWeights& w,
                                  int64_t layer, const float* x) const {
  const int64_t tokens = pass.rows.tokens, width = a_.head_dim;
  const auto norm = [&](float* rows, const Tensor& weight, int64_t m, int64_t n) {
    c_.device.RmsNorm({.x = rows,
                       .ldx = n,
                       .weight = weight.data<float>(),
                       .y = rows,
                       .ldy = n,
                       .m = m,
                       .n = n,
                       .eps = c_.config.norm_eps});
  };
  Multiply(x, w.q_a, tokens, a.q_a);
  norm(a.q_a, w.q_a_norm, tokens, a_.q_lora_rank);
  Multiply(a.q_a, w.q_b, tokens, a.q);
  norm(a.q, w.q_norm, tokens * heads_, width);
  Rotate(pass, a.q, heads_, width, layer);
  Multiply(x, w.kv, tokens, a.kv);
  norm(a.kv, w.kv_norm, tokens, width);
  Rotate(pass, a.kv, 1, width, layer);
  c_.device.StoreKv({.x = a.kv,
                     .ldx = width,
                     .m = tokens,
                     .n = width,
                     .slots = pass.rows.slots,
                     .cache = pass.kv->k(layer).mutable_raw(),
                     .dtype = pass.kv->dtype()});
}

void CompressedAttention::AddToBlocks(Pass& pass, const Arrays& a, const EntryWeights& w,
                                      int64_t layer, bool index, const float* x) const {
  const LayerConfig& kind = c_.config.layers[layer];
  StateStorage& states = pass.kv->states();
  Multiply(x, w.rows, pass.rows.tokens, a.rows);
  Multiply(x, w.gates, pass.rows.tokens, a.gates);
  c_.device.compressed()->Compress(
      {.rows = a.rows,
       .gates = a.gates,
       .ld = w.rows.w.n,
       .bias = w.bias.data<float>(),
       .m = pass.rows.tokens,
       .width = index ? a_.index_head_dim : a_.head_dim,
       .ratio = kind.compress,
       .overlaps = kind.overlaps,
       .positions = pass.rows.positions,
       .slots = pass.rows.slots,
       .states = index ? states.heads(layer) : states.inputs(layer),
       .state_stride = states.slot_floats(),
       .sequences = pass.states,
       .num_sequences = pass.num_states,
       .norm = w.norm.data<float>(),
       .eps = c_.config.norm_eps,
       .cos_sin = c_.cos_sin_of(layer).data<float>(),
       .rotary_dim = a_.qk_rope_head_dim,
       .scratch = a.entries,
       .to = index ? pass.kv->IndexEntries(c_.config, layer) : pass.kv->Entries(c_.config, layer)});
}

void CompressedAttention::SelectEntries(Pass& pass, const Arrays& a,
                                        const CompressedAttentionWeights& w, int64_t layer,
                                        const float* x) const {
  const int64_t tokens = pass.rows.tokens, width = a_.index_heads * a_.index_head_dim;
  Multiply(a.q_a, w.index_q, tokens, a.index_q);
  Rotate(pass, a.index_q, a_.index_heads, a_.index_head_dim, layer);
  // The published scores have positive constant factors, which do not change their order.
  c_.device.Linear({.x = x,
                    .ldx = c_.config.hidden,
                    .w = w.index_weights,
                    .y = a.index_weights,
                    .ldy = a_.index_heads,
                    .m = tokens});
  c_.device.compressed()->SelectEntries({.q = a.index_q,
                                         .ldq = width,
                                         .weights = a.index_weights,
                                         .entries = pass.kv->IndexEntries(c_.config, layer),
                                         .heads = a_.index_heads,
                                         .width = a_.index_head_dim,
                                         .ratio = c_.config.layers[layer].compress,
                                         .topk = a_.index_topk,
                                         .selected = pass.selected_keys()},
                                        *pass.sequences);
}

void CompressedAttention::Attend(Pass& pass, const Arrays& a, const CompressedAttentionWeights& w,
                                 int64_t layer) const {
  const LayerConfig& kind = c_.config.layers[layer];
  const int64_t ld = heads_ * a_.head_dim;
  c_.device.compressed()->AttendToEntries(
      {.q = a.q,
       .ldq = ld,
       .cache = pass.kv->k(layer).raw(),
       .dtype = pass.kv->dtype(),
       .heads = heads_,
       .width = a_.head_dim,
       .window = kind.window,
       .entries = kind.compress > 0 ? pass.kv->Entries(c_.config, layer) : kernels::EntryPlaces(),
       .ratio = kind.compress,
       .selected = kind.overlaps ? pass.selected_keys() : nullptr,
       .topk = a_.index_topk,
       .sinks = w.sinks.data<float>(),
       .scale = a_.scale,
       .cos_sin = c_.cos_sin_of(layer).data<float>(),
       .rotary_dim = a_.qk_rope_head_dim,
       .out = a.attended,
       .ldo = ld},
      *pass.sequences);
}

void CompressedAttention::Rotate(const Pass& pass, float* x, int64_t heads, int64_t width,
                                 int64_t layer) const {
  c_.device.Rope({.x = x,
                  .ldx = heads * width,
                  .m = pass.rows.tokens,
                  .heads = heads,
                  .head_dim = width,
                  .rotary_dim = a_.qk_rope_head_dim,
                  .rotary_offset = width - a_.qk_rope_head_dim,
                  .interleaved = true,
                  .positions = pass.rows.positions,
                  .cos_sin = c_.cos_sin_of(layer).data<float>()});
}

void CompressedAttention::Multiply(const float* x, const LinearWeight& w, int64_t rows,
                                   float* y) const {
  c_.device.Linear(
      {.x = x, .ldx = w.w.k, .w = w.w, .bias = w.bias_data(), .y = y, .ldy = w.w.n, .m = rows});
}

}  // namespace switchyard
