// Ling 3 (Bailing MoE V3): layers of Kimi Delta Attention between layers of latent attention with a
// gate for each head, and DeepSeek-V3's experts. The settings have the names of the hub or of
// transformers 5.24, which saves the tensor names of the hub.
#include "core/error.h"
#include "kernels/recurrent.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadLayers(const ConfigReader& reader, ModelConfig* config) {
  const int64_t group = reader.IntOr({"layer_group_size"}, 6, 1, kMaxCount);
  if (!ReadLinearLayerTypes(reader, config))
    for (int64_t i = 0; i < config->num_layers(); ++i)
      config->layers[i].linear = (i + 1) % group != 0;
  RequireFullLayer(reader, *config);
  // Published code gives layers after the last whole group full attention.
  const int64_t last = config->num_layers() - 1;
  if (config->layers[last].linear && !reader.Has("layer_types"))
    throw Invalid("{} is {}, which does not divide the {} layers; want layer_types too",
                  reader.Where("layer_group_size"), group, config->num_layers());
}

void ReadDeltaAttention(const ConfigReader& reader, ModelConfig* config) {
  const int64_t heads = reader.IntOr({"linear_num_heads"}, config->attention.heads, 1, kMaxCount);
  // On the hub head_dim is that of linear layers; transformers saves another head_dim beside it.
  const int64_t width = reader.IntOr({"linear_head_dim", "head_dim"}, 128, 1, kMaxWidth);
  const int64_t rows = reader.IntOr({"linear_conv_kernel_dim", "short_conv_kernel_size"}, 4, 1,
                                    kernels::kMaxConvWidth);
  const bool bounded = reader.BoolOr("kda_safe_gate", true);
  const double bound = reader.DoubleOr({"kda_lower_bound"}, -5.0, -1e6, 1e6);
  if (bounded && bound >= 0.0)
    throw Invalid("{} is {}; want a negative number", reader.Where("kda_lower_bound"), bound);
  reader.Ignore(
      {"linear_head_dim", "head_dim", "linear_conv_kernel_dim", "short_conv_kernel_size"});
  for (const char* const key : {"use_kda_lora", "use_mla_nope", "value_norm", "up_proj_norm",
                                "use_bias", "use_qkv_bias", "use_nGPT", "scale_router_input"})
    RequireFalse(reader, key);
  for (const char* const key : {"no_kda_lora", "linear_silu", "use_qk_norm", "rope_interleave"})
    RequireTrue(reader, key);
  RequireString(reader, "gated_attention_proj_granularity_type", "head_wise");
  config->linear = LinearAttentionConfig{.rule = kernels::StateRule::kKeyDelta,
                                         .key_heads = heads,
                                         .value_heads = heads,
                                         .key_dim = width,
                                         .value_dim = width,
                                         .conv_width = rows,
                                         .bound = bounded ? static_cast<float>(bound) : 0.0f,
                                         .heads_key = "num_attention_heads"};
}

void ReadExperts(const ConfigReader& reader, ModelConfig* config) {
  if (!ReadMlpLayerTypes(reader, config)) MarkMoeLayersAfter(reader, 2, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  RouterConfig& router = config->moe->router;
  ReadNoAuxRouter(reader, {.scale = 2.5, .groups = 8, .topk_groups = 4}, &router);
  router.renormalize = reader.BoolOr("moe_renormalize", router.renormalize);
  RequireOneOf(reader, "score_function", {"sigmoid"});
  ReadSharedExperts(reader, {"num_shared_experts", "n_shared_experts"}, 1, config);
  const int64_t routed = config->moe->intermediate;
  const int64_t shared =
      reader.IntOr({"moe_shared_expert_intermediate_size"}, routed, 1, kMaxWidth);
  if (shared != routed)
    throw Invalid("{} is {}; want moe_intermediate_size {}",
                  reader.Where("moe_shared_expert_intermediate_size"), shared, routed);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  config->attention.gate = true;
  config->tie_embeddings = false;  // in transformers the head has its own weights in any case
  reader.Ignore({"rope_theta"});   // transformers saves it beside rope_parameters
  ReadWholeRope(reader, 6e6, config->attention.qk_rope_head_dim, config);
  config->rope.interleaved = true;
  ScaleLatentScores(config);
  ReadLayers(reader, config);
  ReadDeltaAttention(reader, config);
  ReadExperts(reader, config);
  if (!config->has_linear()) config->linear.reset();
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names = NamesWithCorrectionBias(config);
  names.embedding = "model.word_embeddings.weight";
  for (std::string* const name : {&names.q, &names.k, &names.v, &names.q_a, &names.q_a_norm,
                                  &names.q_b, &names.kv_a, &names.kv_a_norm, &names.kv_b})
    name->replace(0, name->find('.'), "attention");
  names.o = names.linear_o = "attention.dense";
  names.attention_gate = names.linear_z = "attention.g_proj";
  names.linear_a = "attention.f_proj";
  names.linear_b = "attention.b_proj";
  names.linear_conv = "";
  names.linear_q_conv = "attention.q_conv1d";
  names.linear_k_conv = "attention.k_conv1d";
  names.linear_v_conv = "attention.v_conv1d";
  names.linear_rate = "attention.A_log";
  names.linear_bias = "attention.dt_bias";
  names.linear_norm = "attention.o_norm";
  names.correction_bias_name = "gate.expert_bias";
  return names;
}

constexpr Family kFamilies[] = {
    {.architecture = "BailingHybridForCausalLM",
     .model_type = "bailing_hybrid",
     .read_config = ReadConfig,
     .names = Names},
    {.architecture = "BailingMoeV3ForCausalLM",
     .model_type = "bailing_hybrid",
     .read_config = ReadConfig,
     .names = Names},
};

}  // namespace

std::span<const Family> BailingHybridFamily() { return kFamilies; }

}  // namespace switchyard
