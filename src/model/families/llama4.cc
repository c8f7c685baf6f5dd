// Llama 4 (Scout and Maverick): one routed expert, whose input is scaled by the sigmoid of its
// logit, beside a shared expert. Layers with rotary embedding attend within chunks. The others
// attend to all tokens, and scale their queries by position.
#include <algorithm>

#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// An entry of no_rope_layers is 1 for a layer with rotary embedding. The list may be longer than
// the number of layers; an empty one counts as absent, as in transformers.
void ReadRotatedLayers(const ConfigReader& reader, ModelConfig* config) {
  constexpr std::string_view kKey = "no_rope_layers";
  const int64_t layers = config->num_layers();
  const int64_t every = reader.IntOr({"no_rope_layer_interval"}, 4, 1, kMaxCount);
  const auto rotated = reader.Ints(kKey, 0, 1);
  if (!rotated.empty() && std::ssize(rotated) < layers)
    throw Invalid("{} has {} entries; want one for each of the {} layers", reader.Where(kKey),
                  rotated.size(), layers);
  for (int64_t i = 0; i < layers; ++i)
    config->layers[i].rope = rotated.empty() ? (i + 1) % every != 0 : rotated[i] == 1;
}

// Without layer_types, layers with rotary embedding attend within chunks.
void ReadChunks(const ConfigReader& reader, ModelConfig* config) {
  constexpr std::string_view kKey = "layer_types";
  const auto chunk =
      reader.IsNull("attention_chunk_size")
          ? 0
          : static_cast<int32_t>(reader.IntOr({"attention_chunk_size"}, 8192, 1, INT32_MAX));
  const auto types = reader.Strings(kKey);
  if (!types.empty() && std::ssize(types) != config->num_layers())
    throw Invalid("{} has {} entries; want one for each of the {} layers", reader.Where(kKey),
                  types.size(), config->num_layers());
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    LayerConfig& layer = config->layers[i];
    if (types.empty()) {
      layer.chunk = layer.rope ? chunk : 0;
    } else if (types[i] == "chunked_attention") {
      if (chunk == 0)
        throw Invalid("{} has chunked_attention layers but there is no attention_chunk_size",
                      reader.Where(kKey));
      layer.chunk = chunk;
    } else if (types[i] != "full_attention") {
      throw Invalid("{} holds \"{}\"; want full_attention or chunked_attention", reader.Where(kKey),
                    types[i]);
    }
  }
}

// attn_temperature_tuning is a boolean, or a number in the first published files; 0: off.
bool ReadsTuning(const ConfigReader& reader) {
  constexpr std::string_view kKey = "attn_temperature_tuning";
  reader.Ignore({kKey});
  if (!reader.Has(kKey) || reader.Equals(kKey, "true")) return true;
  return !reader.Equals(kKey, "false") && reader.Int({kKey}, 0, kMaxCount) > 0;
}

void ReadAttention(const ConfigReader& reader, ModelConfig* config) {
  ReadGroupedAttention(reader, reader.IsNull("head_dim") ? 0 : 128, config);
  AttentionConfig& a = config->attention;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  ReadRope(reader, 500000.0, a.head_dim, config);
  if (config->rope.rotary_dim != a.head_dim)
    throw Invalid("{}: {} of a head's {} elements would be rotated; want all",
                  reader.Where("partial_rotary_factor"), config->rope.rotary_dim, a.head_dim);
  config->rope.interleaved = true;
  ReadRotatedLayers(reader, config);
  ReadChunks(reader, config);
  a.norm_after_rope = true;
  if (reader.BoolOr("use_qk_norm", true)) {
    a.qk_norm = AttentionConfig::QkNorm::kPerHead;
    a.qk_norm_weight = false;
    for (LayerConfig& layer : config->layers) layer.qk_norm = layer.rope;
  }
  const int64_t positions = reader.IntOr({"floor_scale"}, 8192, 1, kMaxPosition);
  const double beta = reader.DoubleOr({"attn_scale"}, 0.1, 0.0, 1e3);
  if (!ReadsTuning(reader)) return;
  a.query_scale_beta = beta;
  a.query_scale_positions = positions;
  a.query_scale_offset = 1;
}

void ReadExperts(const ConfigReader& reader, ModelConfig* config) {
  const int64_t layers = config->num_layers();
  const int64_t step = reader.IntOr({"interleave_moe_layer_step"}, 1, 1, kMaxCount);
  const bool listed = reader.Has("moe_layers");
  const auto sparse = reader.Ints("moe_layers", 0, kMaxCount);
  for (int64_t i = 0; i < layers; ++i)
    config->layers[i].moe = listed ? std::ranges::count(sparse, i) > 0 : (i + 1) % step == 0;
  config->intermediate = reader.IntOr({"intermediate_size_mlp"}, 16384, 1, kMaxWidth);
  MoeModelConfig moe = ReadMoe(reader, {"intermediate_size"});
  RouterConfig& router = moe.router;
  if (router.top_k != 1)
    throw Invalid("{} is {}; only 1 is supported, because the input of an expert is scaled",
                  reader.Where("num_experts_per_tok"), router.top_k);
  router.scoring = RouterConfig::Scoring::kTopKSigmoid;
  router.scales_input = true;
  moe.shared_intermediate = moe.intermediate;
  if (std::ranges::any_of(config->layers, &LayerConfig::moe)) config->moe = moe;
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadAttention(reader, config);
  ReadExperts(reader, config);
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.mlp = names.moe = "feed_forward";
  names.router = "router";
  names.shared = "shared_expert";
  names.transposed_experts = true;
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "Llama4ForCausalLM",
                                 .model_type = "llama4_text",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .tool_parser = "llama3"}};

}  // namespace

std::span<const Family> Llama4Family() { return kFamilies; }

}  // namespace switchyard
