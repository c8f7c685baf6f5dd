// MiMo-V2-Flash: DeepSeek-V3's router without shared experts. Values are narrower than keys. Layers
// with a sliding window have attention sinks, more KV heads and another rotary embedding. The
// settings have the names of transformers, or those of the published files.
//
// The MTP layers have a sliding window and a dense feed-forward. Each reads the target's rows
// before the final norm, as in SGLang (models/mimo_v2_nextn.py,
// speculative/multi_layer_eagle_worker_v2.py): layer i the row of position p and the token of
// p + 1 + i.
#include <algorithm>

#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

constexpr RopeDefaults kFullRope = {.theta = 5e6, .part = 0.334};
constexpr RopeDefaults kWindowRope = {.theta = 1e4, .part = 0.334};

// A list with one 0 or 1 for each layer; absent: empty.
std::vector<int64_t> ReadFlags(const ConfigReader& reader, std::string_view key, int64_t layers) {
  std::vector<int64_t> flags = reader.Ints(key, 0, 1);
  if (reader.Has(key) && std::ssize(flags) != layers)
    throw Invalid("{} has {} entries; want one for each of the {} layers", reader.Where(key),
                  flags.size(), layers);
  return flags;
}

// Published files repeat a size of all layers for those with a window.
void RequireSame(const ConfigReader& reader, std::string_view key, int64_t size) {
  const int64_t found = reader.IntOr({key}, size, 0, kMaxWidth);
  if (found != size)
    throw Invalid("{} is {}; only {} is supported, the value of all layers", reader.Where(key),
                  found, size);
}

// A window includes the query's own key. The published sliding_window_size does not, and
// transformers ignores sliding_window beside it.
int64_t ReadWindow(const ConfigReader& reader) {
  const int64_t window = reader.IntOr({"sliding_window"}, 129, 1, INT32_MAX);
  if (!reader.Has("sliding_window_size")) return window;
  return reader.Int({"sliding_window_size"}, 0, INT32_MAX - 1) + 1;
}

// Every sixth layer and the first one are full, unless a list says otherwise.
void ReadWindows(const ConfigReader& reader, ModelConfig* config) {
  const int64_t window = ReadWindow(reader), layers = config->num_layers();
  const std::vector<int64_t> sliding = ReadFlags(reader, "hybrid_layer_pattern", layers);
  if (ReadLayerTypes(reader, window, config)) return;
  if (!sliding.empty()) reader.Ignore({"hybrid_block_size"});
  for (int64_t i = 0; i < layers; ++i) {
    const bool slides = sliding.empty() ? i != 0 && (i + 1) % 6 != 0 : sliding[i] == 1;
    if (slides) config->layers[i].window = static_cast<int32_t>(window);
  }
}

void ReadAttention(const ConfigReader& reader, ModelConfig* config) {
  ReadGroupedAttention(reader, 192, config);
  AttentionConfig& a = config->attention;
  a.v_head_dim = reader.IntOr({"v_head_dim"}, 128, 1, kMaxWidth);
  a.qkv_bias = reader.BoolOr("attention_bias", false);
  if (!reader.IsNull("attention_value_scale"))
    a.value_scale =
        static_cast<float>(reader.DoubleOr({"attention_value_scale"}, 0.707, -1e3, 1e3));
  ReadRopeByLayerType(reader, kFullRope, kWindowRope, a.head_dim, config);
  ReadWindows(reader, config);
  RequireSame(reader, "swa_num_attention_heads", a.heads);
  RequireSame(reader, "swa_head_dim", a.head_dim);
  RequireSame(reader, "swa_v_head_dim", a.v_head_dim);
  reader.Ignore({"attention_chunk_size"});  // published with the window's size, and not used
  const int64_t kv_heads = reader.IntOr({"swa_num_key_value_heads"}, 2 * a.kv_heads, 1, kMaxCount);
  if (a.heads % kv_heads != 0)
    throw Invalid("{} is {}, not a multiple of the {} KV heads of layers with a sliding window",
                  reader.Where("num_attention_heads"), a.heads, kv_heads);
  const bool sinks = reader.BoolOr("add_swa_attention_sink_bias", true);
  const bool full_sinks = reader.BoolOr("add_full_attention_sink_bias", false);
  for (LayerConfig& layer : config->layers) {
    layer.sinks = layer.window > 0 ? sinks : full_sinks;
    if (layer.window > 0) layer.kv_heads = kv_heads;
  }
  config->mtp_block = {
      {.sinks = sinks, .window = static_cast<int32_t>(ReadWindow(reader)), .kv_heads = kv_heads}};
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  config->norm_eps = static_cast<float>(
      reader.DoubleOr({"layernorm_epsilon"}, static_cast<double>(config->norm_eps), 0.0, 1.0));
  ReadDenseIntermediate(reader, config);
  config->mtp_layers = 3;  // the published config.json does not tell
  config->mtp_before_norm = config->mtp_by_depth = true;
  ReadAttention(reader, config);
  const std::vector<int64_t> sparse = ReadFlags(reader, "moe_layer_freq", config->num_layers());
  if (!ReadMlpLayerTypes(reader, config))
    for (int64_t i = 0; i < config->num_layers(); ++i)
      config->layers[i].moe = sparse.empty() ? i > 0 : sparse[i] == 1;
  MoeModelConfig moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, {}, &moe.router);
  if (std::ranges::any_of(config->layers, &LayerConfig::moe)) config->moe = moe;
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names = NamesWithCorrectionBias(config);
  names.sinks = "self_attn.attention_sink_bias";
  names.sinks_alternative = "self_attn.sinks";  // transformers' own modules
  names.mtp = "model.mtp.";
  names.mtp_embedding_norm = "layers.#.enorm";
  names.mtp_hidden_norm = "layers.#.hnorm";
  names.mtp_projection = "layers.#.eh_proj";
  names.mtp_final_norm = "layers.#.final_layernorm";
  if (config.is_mtp) names.post_attention_norm = "pre_mlp_layernorm";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "MiMoV2FlashForCausalLM",
                                 .model_type = "mimo_v2_flash",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .mtp = true,
                                 .tool_parser = "qwen3_coder",
                                 .reasoning_parser = "qwen3"}};

}  // namespace

std::span<const Family> MiMoV2FlashFamily() { return kFamilies; }

}  // namespace switchyard
