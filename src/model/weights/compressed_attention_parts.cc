#include <algorithm>
#include <string>
#include <string_view>

#include "core/check.h"
#include "model/weights/parts.h"

namespace switchyard {
namespace {

constexpr std::string_view kKeys =
    "hidden_size, num_attention_heads, head_dim, q_lora_rank, o_groups, o_lora_rank";
constexpr std::string_view kEntryKeys = "hidden_size, head_dim, index_head_dim, compress_rates";
constexpr std::string_view kStreamKeys = "hidden_size, hc_mult";

Tensor Ones(int64_t n) {
  Tensor ones = Tensor::Empty(DType::kF32, {n});
  std::fill_n(ones.data<float>(), n, 1.0f);
  return ones;
}

// `width`: of an entry.
EntryWeights BuildEntries(Parts& parts, const LayerConfig& layer, const std::string& prefix,
                          int64_t width) {
  const int64_t hidden = parts.config().hidden, rows = width * (layer.overlaps ? 2 : 1);
  EntryWeights w;
  w.rows = parts.Rows(prefix + ".wkv", rows, hidden, {0, rows}, false, kEntryKeys);
  w.gates = parts.Rows(prefix + ".wgate", rows, hidden, {0, rows}, false, kEntryKeys);
  const int64_t n = layer.compress * rows;
  w.bias = parts.Vector(
      {.name = prefix + ".ape", .n = n, .range = {0, n}, .columns = rows, .keys = kEntryKeys});
  w.norm = parts.Norm(prefix + ".norm.weight", width, kEntryKeys);
  return w;
}

}  // namespace

CompressedAttentionWeights BuildCompressedAttention(Parts& parts, int64_t layer,
                                                    const std::string& prefix) {
  const AttentionConfig& a = parts.config().attention;
  const LayerConfig& kind = parts.config().layers[layer];
  const TensorNames& names = parts.names();
  const int64_t hidden = parts.config().hidden, rank = a.q_lora_rank;
  const Range heads = QueryHeads(a, parts.mesh());
  const int64_t heads_of_group = a.heads / a.output_groups;
  CHECK(heads.begin % heads_of_group == 0 && heads.end % heads_of_group == 0);  // CheckSplits

  CompressedAttentionWeights w;
  w.q_a = parts.Rows(prefix + names.q_a, rank, hidden, {0, rank}, false, kKeys);
  w.q_a_norm = parts.Norm(prefix + names.q_a_norm + ".weight", rank, "q_lora_rank");
  w.q_b =
      parts.Rows(prefix + names.q_b, a.heads * a.head_dim, rank, heads * a.head_dim, false, kKeys);
  w.q_norm = Ones(a.head_dim);
  w.kv = parts.Rows(prefix + names.k, a.head_dim, hidden, {0, a.head_dim}, false, kKeys);
  w.kv_norm = parts.Norm(prefix + names.k_norm + ".weight", a.head_dim, "head_dim");
  w.sinks = parts.Vector(
      {.name = prefix + names.sinks, .n = a.heads, .range = heads, .keys = "num_attention_heads"});
  const Range groups{heads.begin / heads_of_group, heads.end / heads_of_group};
  for (int64_t group = groups.begin; group < groups.end; ++group) {
    const Range rows{group * a.output_rank, (group + 1) * a.output_rank};
    w.o_a.push_back(parts
                        .Rows(prefix + names.o_a, a.output_groups * a.output_rank,
                              heads_of_group * a.head_dim, rows, false, kKeys)
                        .w);
  }
  w.o = parts.Columns(prefix + names.o, hidden, a.output_groups * a.output_rank,
                      groups * a.output_rank, false, kKeys);
  if (kind.compress == 0) return w;
  w.entries = BuildEntries(parts, kind, prefix + names.compressor, a.head_dim);
  if (!kind.overlaps) return w;
  const std::string index = prefix + names.indexer;
  const int64_t width = a.index_heads * a.index_head_dim;
  w.index_q = parts.Rows(index + ".wq_b", width, rank, {0, width}, false, kEntryKeys);
  w.index_weights =
      parts.Plain(index + ".weights_proj.weight", a.index_heads, {0, a.index_heads}, kEntryKeys);
  w.index_entries = BuildEntries(parts, kind, index + ".compressor", a.index_head_dim);
  return w;
}

StreamWeights BuildStreams(Parts& parts, const std::string& name, int64_t logits) {
  const int64_t count = parts.config().streams->count, width = parts.config().residual_width();
  const auto vector = [&](const char* suffix, int64_t n) {
    return parts.Vector({.name = name + suffix, .n = n, .range = {0, n}, .keys = kStreamKeys});
  };
  StreamWeights w;
  w.logits = parts.Matrix({.name = name + "fn",
                           .n = logits,
                           .k = width,
                           .rows = {0, logits},
                           .cols = {0, width},
                           .float32 = true,
                           .keys = kStreamKeys});
  w.logits.activation = ActivationFormat::kNone;
  w.base = vector("base", logits);
  w.scale = vector("scale", logits == count ? 1 : 3);
  return w;
}

}  // namespace switchyard
