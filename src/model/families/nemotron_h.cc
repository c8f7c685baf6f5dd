// Nemotron-H 3: each layer has either a mixer, which is Mamba-2 or attention without rotary
// embedding, or a feed-forward, which is dense or MoE. Feed-forwards have no gate. The router is
// DeepSeek-V3's. The rows of routed experts may be narrower than hidden ("latent").
//
// The MTP layer has layers of these kinds without Mamba-2, as in vLLM and SGLang
// (nemotron_h_mtp.py). The first one joins its inputs, and the last one has the final norm.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "kernels/recurrent.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

constexpr std::string_view kMamba = "linear_attention", kAttention = "full_attention", kMoe = "moe",
                           kDense = "mlp";

// Keys of the layers: a list of types, or on the hub a pattern with one character for each layer.
struct LayerKeys {
  const char *types, *pattern;
};
constexpr LayerKeys kLayers = {"layers_block_type", "hybrid_override_pattern"},
                    kMtpLayers = {"mtp_layers_block_type", "mtp_hybrid_override_pattern"};

std::vector<std::string> FromPattern(const ConfigReader& reader, const char* key,
                                     const std::string& pattern) {
  std::vector<std::string> types;
  for (const char c : pattern) {
    const std::string_view type = c == 'M'   ? kMamba
                                  : c == '*' ? kAttention
                                  : c == 'E' ? kMoe
                                  : c == '-' ? kDense
                                             : "";
    if (type.empty()) throw Invalid("{} holds \"{}\"; want M, *, E or -", reader.Where(key), c);
    types.emplace_back(type);
  }
  return types;
}

std::vector<std::string> LayerTypes(const ConfigReader& reader, const LayerKeys& keys) {
  reader.Ignore({keys.types, keys.pattern});
  return reader.Has(keys.types)
             ? reader.Strings(keys.types)
             : FromPattern(reader, keys.pattern, reader.StringOr({keys.pattern}, ""));
}

LayerConfig LayerOf(const ConfigReader& reader, const char* key, const std::string& type) {
  LayerConfig layer{.mixer = false, .feed_forward = false, .rope = false};
  if (type == kMamba || type == "mamba") {
    layer.mixer = layer.linear = true;
  } else if (type == kAttention || type == "attention") {
    layer.mixer = true;
  } else if (type == kMoe || type == kDense) {
    layer.feed_forward = true;
    layer.moe = type == kMoe;
  } else {
    throw Invalid("{} holds \"{}\"; want linear_attention, full_attention, moe or mlp",
                  reader.Where(key), type);
  }
  return layer;
}

void ReadLayers(const ConfigReader& reader, ModelConfig* config) {
  reader.Ignore({"layer_types", "num_hidden_layers"});  // the list has one entry for each layer
  LayerKeys keys = kLayers;
  if (!reader.Has(keys.types) && reader.Has("layer_types")) keys.types = "layer_types";
  const char* const where = reader.Has(keys.types) ? keys.types : keys.pattern;
  for (const std::string& type : LayerTypes(reader, keys))
    config->layers.push_back(LayerOf(reader, where, type));
  if (config->num_layers() > kMaxCount)
    throw Invalid("{} has {} layers; want at most {}", reader.Where(where), config->num_layers(),
                  kMaxCount);
  if (std::ranges::none_of(config->layers, &LayerConfig::attends))
    throw Invalid("{}: want at least one layer with full_attention", reader.Where(where));
}

// Attention and experts, unless a key has another list.
void ReadMtpLayers(const ConfigReader& reader, ModelConfig* config) {
  const char* const where = reader.Has(kMtpLayers.types) ? kMtpLayers.types : kMtpLayers.pattern;
  std::vector<std::string> types = LayerTypes(reader, kMtpLayers);
  if (types.empty()) types = {std::string(kAttention), std::string(kMoe)};
  for (const std::string& type : types) config->mtp_block.push_back(LayerOf(reader, where, type));
}

void ReadMamba(const ConfigReader& reader, ModelConfig* config) {
  const LinearAttentionConfig mamba{
      .rule = kernels::StateRule::kMamba2,
      .key_heads = reader.IntOr({"mamba_n_groups", "n_groups"}, 8, 1, kMaxCount),
      .value_heads = reader.IntOr({"mamba_num_heads"}, 128, 1, kMaxCount),
      .key_dim = reader.IntOr({"ssm_state_size"}, 128, 1, kMaxWidth),
      .value_dim = reader.IntOr({"mamba_head_dim"}, 64, 1, kMaxWidth),
      .conv_width = reader.IntOr({"mamba_d_conv", "conv_kernel"}, 4, 1, kernels::kMaxConvWidth),
      .conv_bias = reader.BoolOr("mamba_conv_bias", reader.BoolOr("use_conv_bias", true)),
      .projection_bias = reader.BoolOr("use_bias", false),
      .min_step =
          static_cast<float>(reader.DoubleOr({"mamba_dt_min", "time_step_min"}, 0.001, 0.0, 1e6)),
      .heads_key = "n_groups"};
  RequireOneOf(reader, "mamba_hidden_act", {"silu", "swish"});
  RequireFalse(reader, "mamba_proj_bias");
  if (mamba.value_heads % mamba.key_heads != 0)
    throw Invalid("{} is {}, not a multiple of n_groups {}", reader.Where("mamba_num_heads"),
                  mamba.value_heads, mamba.key_heads);
  if (config->has_states()) config->linear = mamba;
}

void ReadFeedForwards(const ConfigReader& reader, ModelConfig* config) {
  RequireString(reader, "mlp_hidden_act", "relu2");
  config->activation = kernels::Activation::kRelu2;
  config->intermediate = reader.IntOr({"intermediate_size"}, 21504, 1, kMaxWidth);
  // transformers always has a shared expert.
  reader.Ignore({"n_shared_experts", "moe_shared_expert_intermediate_size"});
  if (std::ranges::none_of(config->layers, &LayerConfig::moe)) return;
  MoeModelConfig moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, {}, &moe.router);
  moe.latent = reader.IntOr({"moe_latent_size"}, 0, 0, kMaxWidth);
  const int64_t shared = reader.IntOr({"moe_shared_expert_intermediate_size"}, 7688, 1, kMaxWidth);
  if (moe.latent == 0) moe.shared_intermediate = shared;
  for (std::vector<LayerConfig>* const layers : {&config->layers, &config->mtp_block})
    for (LayerConfig& layer : *layers) {
      if (!layer.moe || moe.latent == 0) continue;
      layer.dense_beside = true;
      layer.intermediate = shared;
    }
  config->moe = moe;
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config, "");
  config->norm_eps = static_cast<float>(reader.DoubleOr({"layer_norm_epsilon"}, 1e-5, 0.0, 1.0));
  config->tie_embeddings = false;  // in transformers the head has its own weights in any case
  reader.Ignore({"norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
                 "partial_rotary_factor"});  // no rotary embedding
  ReadLayers(reader, config);
  ReadMtpLayers(reader, config);
  ReadGroupedAttention(reader, 128, config);
  ReadMamba(reader, config);
  ReadFeedForwards(reader, config);
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names = NamesWithCorrectionBias(config);
  names.embedding = "backbone.embeddings.weight";
  names.final_norm = "backbone.norm_f.weight";
  names.layers = "backbone.layers.";
  names.mtp = "mtp.";
  names.mtp_embedding_norm = "layers.0.enorm";
  names.mtp_hidden_norm = "layers.0.hnorm";
  names.mtp_projection = "layers.0.eh_proj";
  names.mtp_embedding.clear();
  names.mtp_final_norm = fmt::format("layers.{}.final_layernorm", std::ssize(config.mtp_block) - 1);
  names.input_norm = names.post_attention_norm = "norm";
  names.q = "mixer.q_proj";
  names.k = "mixer.k_proj";
  names.v = "mixer.v_proj";
  names.o = "mixer.o_proj";
  names.linear_all = "mixer.in_proj";
  names.linear_conv = "mixer.conv1d";
  names.linear_rate = "mixer.A_log";
  names.linear_bias = "mixer.dt_bias";
  names.linear_skip = "mixer.D";
  names.linear_norm = "mixer.norm";
  names.linear_o = "mixer.out_proj";
  names.mlp = names.moe = "mixer";
  names.latent_in = "mixer.fc1_latent_proj";
  names.latent_out = "mixer.fc2_latent_proj";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "NemotronHForCausalLM",
                                 .model_type = "nemotron_h",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .mtp = true,
                                 .tool_parser = "qwen3_coder",
                                 .reasoning_parser = "qwen3"}};

}  // namespace

std::span<const Family> NemotronHFamily() { return kFamilies; }

}  // namespace switchyard
