// Ling 2.5 and 2.6, Ring 2.5: layers of Lightning Attention between layers of latent attention, and
// DeepSeek-V3's experts. The settings have the names of the hub or of transformers. The tensors
// have the names of the hub; those of transformers are renamed (weights/stored_names.h).
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadLayers(const ConfigReader& reader, ModelConfig* config) {
  const int64_t group = reader.IntOr({"layer_group_size"}, 8, 1, kMaxCount);
  const int64_t layers = config->num_layers();
  if (!ReadLinearLayerTypes(reader, config))
    for (int64_t i = 0; i < layers; ++i) config->layers[i].linear = (i + 1) % group != 0;
  RequireFullLayer(reader, *config);
  for (int64_t i = 0; i < layers; ++i) {
    if (!config->layers[i].linear) continue;
    const double place = static_cast<double>(i - 1) / static_cast<double>(layers - 1);
    config->layers[i].decay = static_cast<float>(1.0 - place + 1e-5);
  }
}

void ReadLightningAttention(const ConfigReader& reader, ModelConfig* config) {
  int64_t heads = reader.IntOr({"num_kv_heads_for_linear_attn"}, 64, 0, kMaxCount);
  if (heads == 0) heads = config->attention.heads;
  const int64_t groups = reader.IntOr({"group_norm_size"}, 8, 1, kMaxWidth);
  if (config->hidden % heads != 0)
    throw Invalid("{} is {}, which does not divide hidden_size {}; want a divisor",
                  reader.Where("num_kv_heads_for_linear_attn"), heads, config->hidden);
  if (config->hidden % groups != 0)
    throw Invalid("{} is {}, which does not divide hidden_size {}; want a divisor",
                  reader.Where("group_norm_size"), groups, config->hidden);
  for (const char* const key : {"use_linear_silu", "use_bias", "use_qkv_bias"})
    RequireFalse(reader, key);
  RequireTrue(reader, "linear_rope");
  config->linear = LinearAttentionConfig{.rule = kernels::StateRule::kFixed,
                                         .key_heads = heads,
                                         .value_heads = heads,
                                         .key_dim = config->hidden / heads,
                                         .value_dim = config->hidden / heads,
                                         .conv_width = 1,
                                         .projection_bias = config->attention.qkv_bias,
                                         .qk_norm = reader.BoolOr("use_qk_norm", true),
                                         .norm_groups = groups,
                                         .silu_gate = reader.BoolOr("linear_silu", false),
                                         .heads_key = "num_kv_heads_for_linear_attn"};
}

// Linear layers rotate a part of a head (partial_rotary_factor), in halves. Latent attention
// rotates all of qk_rope_head_dim. Embeddings of a type other than "default" have one set of
// frequencies for both in transformers, so they need equal numbers of rotated elements.
void ReadRotaryEmbeddings(const ConfigReader& reader, ModelConfig* config) {
  const int64_t rotated = config->attention.qk_rope_head_dim, head = config->linear->key_dim;
  ReadRope(reader, 10000.0, head, config, 0.5);
  if (config->rope.type != RopeConfig::Type::kDefault) {
    if (config->rope.rotary_dim == head) ReadRope(reader, 10000.0, rotated, config, 0.5);
    if (config->rope.rotary_dim != rotated || rotated > head)
      throw Invalid(
          "{}: linear layers would rotate {} of a head's {} elements; want as many as "
          "qk_rope_head_dim {}, because the rotary embedding is scaled",
          reader.Where("partial_rotary_factor"), config->rope.rotary_dim, head, rotated);
  }
  const int64_t stated = reader.IntOr({"rotary_dim"}, config->rope.rotary_dim, 0, kMaxWidth);
  if (stated != config->rope.rotary_dim)
    throw Invalid("{} is {}; want {}, as partial_rotary_factor states", reader.Where("rotary_dim"),
                  stated, config->rope.rotary_dim);
  config->window_rope = config->rope;
  config->rope.rotary_dim = rotated;
  config->rope.interleaved = reader.BoolOr("rope_interleave", true);
  ScaleLatentScores(config);
  if (config->has_linear()) return;
  config->linear.reset();
  config->window_rope.reset();
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  ReadLayers(reader, config);
  ReadLightningAttention(reader, config);
  ReadRotaryEmbeddings(reader, config);
  MarkMoeLayersAfter(reader, 4, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  RequireOneOf(reader, "score_function", {"sigmoid"});
  ReadNoAuxRouter(reader, {.scale = 2.5, .groups = 8, .topk_groups = 4}, &config->moe->router);
  config->moe->shared_intermediate =
      reader.IntOr({"num_shared_experts"}, 1, 0, kMaxCount) *
      reader.IntOr({"moe_shared_expert_intermediate_size"}, 2048, 1, kMaxWidth);
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names = NamesWithCorrectionBias(config);
  names.embedding = "model.word_embeddings.weight";
  for (std::string* const name : {&names.q, &names.q_a, &names.q_a_norm, &names.q_b, &names.kv_a,
                                  &names.kv_a_norm, &names.kv_b})
    name->replace(0, name->find('.'), "attention");
  names.o = names.linear_o = "attention.dense";
  names.linear_qkv = "attention.query_key_value";
  names.linear_z = "attention.g_proj";
  names.linear_norm = "attention.g_norm";
  names.linear_q_norm = "attention.query_layernorm";
  names.linear_k_norm = "attention.key_layernorm";
  names.correction_bias_name = "gate.expert_bias";
  return names;
}

constexpr Family kFamilies[] = {
    {.architecture = "BailingMoeV2_5ForCausalLM",
     .model_type = "bailing_hybrid",
     .read_config = ReadConfig,
     .names = Names,
     .tool_parser = "qwen25",
     .reasoning_parser = "qwen3"},
};

}  // namespace

std::span<const Family> BailingMoeV25Family() { return kFamilies; }

}  // namespace switchyard
