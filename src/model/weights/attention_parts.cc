#include <algorithm>

#include "core/error.h"
#include "model/weights/parts.h"

namespace switchyard {
namespace {

constexpr std::string_view kGroupedKeys =
    "hidden_size, num_attention_heads, num_key_value_heads, head_dim, v_head_dim";
constexpr std::string_view kLatentKeys =
    "hidden_size, num_attention_heads, q_lora_rank, kv_lora_rank, qk_nope_head_dim, "
    "qk_rope_head_dim, v_head_dim";
constexpr std::string_view kIndexKeys = "hidden_size, q_lora_rank, index_n_heads, index_head_dim";

// The weight of a norm that has none. Every device has the norm with a weight, and a product with 1
// has the same bits.
Tensor Ones(int64_t n) {
  Tensor ones = Tensor::Empty(DType::kF32, {n});
  std::fill_n(ones.data<float>(), n, 1.0f);
  return ones;
}

// The scales of keys or of values in an e4m3 cache.
struct CacheScaleNames {
  char kind;           // 'k' or 'v'
  std::string module;  // of attention: "model.layers.0.self_attn"
  std::string linear;  // of the keys or values
  bool joint = false;  // whether the linear has queries, keys and values
};

// The name under which the scales are stored; empty: none. llm-compressor stores them with the
// module, ModelOpt with the linear. Older files of compressed-tensors call them the scale of the
// linear's output, and AutoFP8 has one scale for both. The output of a joint linear has queries
// too, so its scale is not that of the cache.
std::string StoredCacheScales(const Parts& parts, const CacheScaleNames& of) {
  const std::string name = std::string(1, of.kind) + "_scale";
  const auto has = [&](const std::string& stored) {
    const bool of_output = stored.starts_with(of.linear + ".output_");
    return !(of.joint && of_output) && parts.Has(stored);
  };
  for (const std::string& zeros :
       {of.module + "." + of.kind + "_zero_point", of.linear + ".output_zero_point"})
    if (has(zeros))
      throw Invalid(
          "--kv-cache-dtype fp8_e4m3: the checkpoint has zero points of the cache, \"{}\", which "
          "are not supported; want scales without them, or --kv-cache-dtype auto",
          zeros);
  for (const std::string& stored :
       {of.module + "." + name, of.module + ".attn." + name, of.linear + "." + name,
        of.linear + ".output_scale", of.module + ".kv_scale"})
    if (has(stored)) return stored;
  return "";
}

// The module of a linear: "self_attn" of "self_attn.k_proj".
std::string AttentionModule(const std::string& linear) {
  return linear.substr(0, linear.rfind('.'));
}

// GroupedAttentionWeights::k_scales and v_scales.
void BuildCacheScales(Parts& parts, const std::string& prefix, int64_t kv_heads, Range of_rank,
                      GroupedAttentionWeights* w) {
  if (!parts.config().quantization.cache_scales) return;
  const TensorNames& names = parts.names();
  const bool joint = !names.qkv.empty();
  const std::string module = prefix + AttentionModule(joint ? names.qkv : names.k);
  const std::string k =
      StoredCacheScales(parts, {'k', module, prefix + (joint ? names.qkv : names.k), joint});
  const std::string v =
      StoredCacheScales(parts, {'v', module, prefix + (joint ? names.qkv : names.v), joint});
  if (k.empty() != v.empty())
    throw Invalid(
        "--kv-cache-dtype fp8_e4m3: the checkpoint has \"{}\", but only keys or values have such "
        "scales; want k_scale and v_scale in each layer, or in none",
        k.empty() ? v : k);
  if (k.empty()) return;
  const auto scales = [&](const std::string& name) {
    return parts.Vector({.name = name,
                         .n = kv_heads,
                         .range = of_rank,
                         .scales = true,
                         .keys = "num_key_value_heads"});
  };
  w->k_scales = scales(k);
  w->v_scales = scales(v);
}

// weights_proj is stored plain in quantized checkpoints too.
IndexWeights BuildIndex(Parts& parts, const std::string& prefix) {
  const AttentionConfig& a = parts.config().attention;
  const int64_t width = a.index_heads * a.index_head_dim, head = a.index_head_dim;
  const auto size = static_cast<size_t>(head);
  IndexWeights w;
  w.q = parts.Rows(prefix + ".wq_b", width, a.q_lora_rank, {0, width}, false, kIndexKeys);
  w.k = parts.Rows(prefix + ".wk", head, parts.config().hidden, {0, head}, false, kIndexKeys);
  w.k_norm = Tensor::Empty(DType::kF32, {2, head});
  parts.Vector({.name = prefix + ".k_norm.weight",
                .n = head,
                .range = {0, head},
                .norm = true,
                .keys = kIndexKeys},
               {w.k_norm.data<float>(), size});
  parts.Vector({.name = prefix + ".k_norm.bias", .n = head, .range = {0, head}, .keys = kIndexKeys},
               {w.k_norm.data<float>() + head, size});
  w.weights =
      parts.Plain(prefix + ".weights_proj.weight", a.index_heads, {0, a.index_heads}, kIndexKeys);
  return w;
}

}  // namespace

GroupedAttentionWeights BuildGroupedAttention(Parts& parts, int64_t layer,
                                              const std::string& prefix) {
  const AttentionConfig& a = parts.config().attention;
  const TensorNames& names = parts.names();
  const int64_t hidden = parts.config().hidden, input = parts.config().attention_input_width();
  const int64_t kv_heads = parts.config().kv_heads(layer);
  const int64_t q_size = a.heads * a.head_dim, out_size = a.heads * a.value_dim();
  const int64_t k_size = kv_heads * a.head_dim, v_size = kv_heads * a.value_dim();
  const Range heads = QueryHeads(a, parts.mesh());
  const Range of_rank = KvHeads(parts.config(), layer, parts.mesh());
  const Range q = heads * a.head_dim, out = heads * a.value_dim();
  const Range k = of_rank * a.head_dim, v = of_rank * a.value_dim();

  GroupedAttentionWeights w;
  if (names.qkv.empty()) {
    const int64_t with_gate = a.gate_in_q ? 2 : 1;
    w.q = parts.Rows(prefix + names.q, with_gate * q_size, input, q * with_gate, a.qkv_bias,
                     kGroupedKeys);
    w.k = parts.Rows(prefix + names.k, k_size, input, k, a.qkv_bias, kGroupedKeys);
    w.v = parts.Rows(prefix + names.v, v_size, input, v, a.qkv_bias, kGroupedKeys);
  } else {
    const auto rows = [&](int64_t first, Range of) {
      return parts.Rows(prefix + names.qkv, q_size + k_size + v_size, input,
                        {first + of.begin, first + of.end}, a.qkv_bias, kGroupedKeys);
    };
    w.q = rows(0, q);
    w.k = rows(q_size, k);
    w.v = rows(q_size + k_size, v);
  }
  if (a.gate && !a.gate_in_q)
    w.gate = parts.Rows(prefix + names.attention_gate, out_size, hidden, out, false, kGroupedKeys);
  w.o = parts.Columns(prefix + names.o, hidden, out_size, out, a.output_bias, kGroupedKeys);
  const std::string q_norm = prefix + names.q_norm + ".weight";
  const std::string k_norm = prefix + names.k_norm + ".weight";
  if (!a.qk_norm_weight) {
    w.q_norm = w.k_norm = Ones(a.head_dim);
  } else if (a.qk_norm == AttentionConfig::QkNorm::kPerHead) {
    w.q_norm = parts.Norm(q_norm, a.head_dim, "head_dim");
    w.k_norm = parts.Norm(k_norm, a.head_dim, "head_dim");
  } else if (a.qk_norm == AttentionConfig::QkNorm::kWhole) {
    w.q_norm = parts.Norm(q_norm, q_size, q, kGroupedKeys);
    w.k_norm = parts.Norm(k_norm, k_size, k, kGroupedKeys);
  }
  if (parts.config().layers[layer].sinks) {
    const bool other = !names.sinks_alternative.empty() && !parts.Has(prefix + names.sinks) &&
                       parts.Has(prefix + names.sinks_alternative);
    w.sinks = parts.Vector({.name = prefix + (other ? names.sinks_alternative : names.sinks),
                            .n = a.heads,
                            .range = heads,
                            .keys = "num_attention_heads"});
  }
  BuildCacheScales(parts, prefix, kv_heads, of_rank, &w);
  return w;
}

LatentAttentionWeights BuildLatentAttention(Parts& parts, const std::string& prefix, bool indexer) {
  const AttentionConfig& a = parts.config().attention;
  const TensorNames& names = parts.names();
  const int64_t hidden = parts.config().hidden;
  const int64_t q_size = a.heads * a.head_dim;
  const Range heads = QueryHeads(a, parts.mesh());
  const Range q = heads * a.head_dim;

  LatentAttentionWeights w;
  if (a.q_lora_rank == 0) {
    w.q = parts.Rows(prefix + names.q, q_size, hidden, q, false, kLatentKeys);
  } else {
    const int64_t rank = a.q_lora_rank;
    w.q_a = parts.Rows(prefix + names.q_a, rank, hidden, {0, rank}, a.qkv_bias, kLatentKeys);
    w.q_a_norm = parts.Norm(prefix + names.q_a_norm + ".weight", rank, "q_lora_rank");
    w.q_b = parts.Rows(prefix + names.q_b, q_size, rank, q, false, kLatentKeys);
  }
  const int64_t latent = a.kv_lora_rank + a.qk_rope_head_dim;
  w.kv_a = parts.Rows(prefix + names.kv_a, latent, hidden, {0, latent}, a.qkv_bias, kLatentKeys);
  w.kv_a_norm = parts.Norm(prefix + names.kv_a_norm + ".weight", a.kv_lora_rank, "kv_lora_rank");
  if (a.latent_scale != 1.0f)
    for (int64_t i = 0; i < a.kv_lora_rank; ++i) w.kv_a_norm.data<float>()[i] *= a.latent_scale;

  // kv_b_proj has, for each head, nope rows for keys, then v rows for values.
  const int64_t per_head = a.qk_nope_head_dim + a.v_head_dim;
  // The absorbed matrices multiply other inputs than the stored matrix, so its input quantization
  // does not apply.
  const auto up = [&](Range rows) {
    WeightView w =
        parts
            .Rows(prefix + names.kv_b, a.heads * per_head, a.kv_lora_rank, rows, false, kLatentKeys)
            .w;
    w.activation = ActivationFormat::kNone;
    return w;
  };
  for (int64_t head = heads.begin; head < heads.end; ++head) {
    const int64_t first = head * per_head, middle = first + a.qk_nope_head_dim;
    w.k_up.push_back(up({first, middle}));
    w.v_up.push_back(up({middle, first + per_head}));
  }
  w.o = parts.Columns(prefix + names.o, hidden, a.heads * a.v_head_dim, heads * a.v_head_dim,
                      a.output_bias, kLatentKeys);
  if (a.gate)
    w.gate = parts.Rows(prefix + names.attention_gate, a.heads, hidden, heads, false, kLatentKeys);
  if (parts.config().quantization.cache_scales) {
    // A latent is key and value, and has the scale of keys.
    const std::string name =
        StoredCacheScales(parts, {'k', prefix + AttentionModule(names.kv_b), prefix + names.k});
    if (!name.empty())
      w.cache_scale = parts.Vector(
          {.name = name, .n = 1, .range = {0, 1}, .scales = true, .keys = "the latent"});
  }
  if (indexer) w.index = BuildIndex(parts, prefix + names.indexer);
  return w;
}

}  // namespace switchyard
