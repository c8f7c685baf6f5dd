// Kimi-Linear: layers of Kimi Delta Attention between layers of latent attention without rotary
// embedding, and DeepSeek-V3's experts. The settings have the names of the hub or of transformers.
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "kernels/recurrent.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

constexpr std::string_view kLinear = "linear_attn_config";

// The lists of linear_attn_config count layers from 1. Each layer is in one of them.
void ReadLayerLists(const ConfigReader& linear, ModelConfig* config) {
  const int64_t layers = config->num_layers();
  std::vector<bool> named(static_cast<size_t>(layers));
  for (const char* key : {"full_attn_layers", "kda_layers"}) {
    for (const int64_t layer : linear.Ints(key, 1, layers)) {
      const auto i = static_cast<size_t>(layer - 1);
      if (named[i]) throw Invalid("{}: layer {} is named twice", linear.Where(key), layer);
      named[i] = true;
      config->layers[i].linear = key == std::string_view("kda_layers");
    }
  }
  for (int64_t i = 0; i < layers; ++i)
    if (!named[static_cast<size_t>(i)])
      throw Invalid("{}: neither this list nor full_attn_layers has layer {}",
                    linear.Where("kda_layers"), i + 1);
}

void ReadLayers(const ConfigReader& reader, ModelConfig* config) {
  const auto linear = reader.Object(kLinear);
  const bool listed = linear && linear->Has("full_attn_layers") && linear->Has("kda_layers");
  if (!ReadLinearLayerTypes(reader, config)) {
    if (listed) {
      ReadLayerLists(*linear, config);
    } else {
      for (int64_t i = 0; i < config->num_layers(); ++i)
        config->layers[i].linear = i == 0 || i % 4 != 0;
    }
  }
  RequireFullLayer(reader, *config);
  for (LayerConfig& layer : config->layers) layer.rope = false;
}

void ReadLinearAttention(const ConfigReader& reader, ModelConfig* config) {
  int64_t heads = reader.IntOr({"linear_num_heads"}, 32, 1, kMaxCount);
  int64_t width = reader.IntOr({"linear_head_dim"}, 128, 1, kMaxWidth);
  int64_t rows = reader.IntOr({"linear_conv_kernel_dim"}, 4, 1, kernels::kMaxConvWidth);
  if (const auto linear = reader.Object(kLinear)) {
    heads = linear->IntOr({"num_heads"}, heads, 1, kMaxCount);
    width = linear->IntOr({"head_dim"}, width, 1, kMaxWidth);
    rows = linear->IntOr({"short_conv_kernel_size"}, rows, 1, kernels::kMaxConvWidth);
    linear->Ignore({"full_attn_layers", "kda_layers"});
    if (const auto unread = linear->Unread(); !unread.empty())
      throw Invalid(
          "{} is {}, which is not supported for KimiLinearForCausalLM; want a "
          "config.json without this key",
          linear->Where(unread.front()), linear->ValueText(unread.front()));
  }
  config->linear = LinearAttentionConfig{.rule = kernels::StateRule::kKeyDelta,
                                         .key_heads = heads,
                                         .value_heads = heads,
                                         .key_dim = width,
                                         .value_dim = width,
                                         .conv_width = rows,
                                         .gate_rank = width,
                                         .heads_key = "linear_attn_config.num_heads"};
}

void ReadExperts(const ConfigReader& reader, ModelConfig* config) {
  if (!ReadMlpLayerTypes(reader, config)) MarkMoeLayersAfter(reader, 1, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  RouterConfig& router = config->moe->router;
  ReadNoAuxRouter(reader, {.scale = 2.446}, &router);
  router.renormalize = reader.BoolOr("moe_renormalize", router.renormalize);
  RequireString(reader, "moe_router_activation_func", "sigmoid");
  RequireTrue(reader, "use_grouped_topk");
  ReadSharedExperts(reader, {"num_shared_experts", "n_shared_experts"}, 1, config);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  config->tie_embeddings = false;  // in transformers the head has its own weights in any case
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  RequireTrue(reader, "mla_use_nope");
  reader.Ignore({"rope_theta", "rope_scaling", "rope_parameters"});
  ReadLayers(reader, config);
  ReadLinearAttention(reader, config);
  ReadExperts(reader, config);
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names = NamesWithCorrectionBias(config);
  names.moe = "block_sparse_moe";
  names.moe_alternative = "mlp";
  names.mlp_alternative = "block_sparse_moe";  // as transformers 5.24 stores them
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  names.linear_a_low = "self_attn.f_a_proj";
  names.linear_a = "self_attn.f_b_proj";
  names.linear_z_low = "self_attn.g_a_proj";
  names.linear_z = "self_attn.g_b_proj";
  names.linear_b = "self_attn.b_proj";
  names.linear_conv = "";
  names.linear_q_conv = "self_attn.q_conv1d";
  names.linear_k_conv = "self_attn.k_conv1d";
  names.linear_v_conv = "self_attn.v_conv1d";
  names.linear_rate = "self_attn.A_log";
  names.linear_bias = "self_attn.dt_bias";
  names.linear_norm = "self_attn.o_norm";
  names.linear_o = "self_attn.o_proj";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "KimiLinearForCausalLM",
                                 .model_type = "kimi_linear",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .tool_parser = "kimi_k2"}};

}  // namespace

std::span<const Family> KimiLinearFamily() { return kFamilies; }

}  // namespace switchyard
