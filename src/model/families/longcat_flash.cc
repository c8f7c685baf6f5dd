// LongCat-Flash: a layer has two blocks of latent attention and dense feed-forward, which are two
// layers here. A MoE with experts without computation reads the rows of the first feed-forward, and
// its output is added after the second one (shortcut-connected MoE). Meituan, "LongCat-Flash
// Technical Report" (https://arxiv.org/abs/2509.01322).
//
// The MTP layer is one block of latent attention and dense feed-forward. Its tensors have other
// names than those of the layers.
#include <cmath>

#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

constexpr int kBlocks = 2;

void ReadLayers(const ConfigReader& reader, ModelConfig* config) {
  const int64_t blocks = kBlocks * config->num_layers();
  if (reader.IntOr({"num_hidden_layers"}, blocks, 1, kMaxCount) != blocks)
    throw Invalid("{} is not {}, twice num_layers", reader.Where("num_hidden_layers"), blocks);
  config->layers.assign(blocks, LayerConfig{});
  for (int64_t i = 0; i < blocks; i += kBlocks)
    config->layers[i].moe = config->layers[i].shortcut = true;
}

// Queries are scaled by (hidden / q_lora_rank)^0.5 and latents by (hidden / kv_lora_rank)^0.5.
void ReadAttention(const ConfigReader& reader, ModelConfig* config) {
  RequireString(reader, "attention_method", "MLA");
  ReadLatentAttention(reader, config);
  AttentionConfig& a = config->attention;
  if (a.q_lora_rank == 0)
    throw Invalid("{}: want a rank, since it scales the queries", reader.Where("q_lora_rank"));
  if (reader.IntOr({"qk_head_dim"}, a.head_dim, 1, kMaxWidth) != a.head_dim)
    throw Invalid("{} is not {}, the sum of qk_nope_head_dim and qk_rope_head_dim",
                  reader.Where("qk_head_dim"), a.head_dim);
  ReadRope(reader, 1e7, a.qk_rope_head_dim, config);
  config->rope.interleaved = true;
  ScaleLatentScores(config);
  RequireTrue(reader, "mla_scale_q_lora");
  RequireTrue(reader, "mla_scale_kv_lora");
  const auto scale = [&](int64_t rank) {
    return static_cast<float>(
        std::sqrt(static_cast<double>(config->hidden) / static_cast<double>(rank)));
  };
  a.scale *= scale(a.q_lora_rank);
  a.latent_scale = scale(a.kv_lora_rank);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config, "num_layers");
  ReadLayers(reader, config);
  config->mtp_layers = 1;  // the published config.json does not tell
  config->mtp_block = {LayerConfig{}};
  config->intermediate = reader.Int({"ffn_hidden_size"}, 1, kMaxWidth);
  ReadAttention(reader, config);

  MoeModelConfig& moe = config->moe.emplace();
  moe.intermediate = reader.Int({"expert_ffn_hidden_size"}, 1, kMaxWidth);
  RouterConfig& router = moe.router;
  router.num_experts = static_cast<int>(reader.Int({"n_routed_experts"}, 1, kMaxCount));
  router.top_k = static_cast<int>(reader.Int({"moe_topk"}, 1, kMaxCount));
  CheckTopK(reader, "moe_topk", router);
  router.zero_experts = static_cast<int>(reader.IntOr({"zero_expert_num"}, 256, 0, kMaxCount));
  RequireString(reader, "zero_expert_type", "identity");
  RequireFalse(reader, "norm_topk_prob");
  RequireFalse(reader, "router_bias");
  router.routed_scaling_factor =
      static_cast<float>(reader.DoubleOr({"routed_scaling_factor"}, 6.0, 0.0, 1e6));
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names;
  names.mtp = "model.mtp.";
  names.mtp_embedding_norm = "layers.0.enorm.m";
  names.mtp_hidden_norm = "layers.0.hnorm.m";
  names.mtp_projection = "layers.0.eh_proj";
  if (config.is_mtp) {
    names.mlp = "transformer_layer.mlp";
    return names;
  }
  names.blocks = kBlocks;
  names.input_norm = "input_layernorm.#";
  names.post_attention_norm = "post_attention_layernorm.#";
  names.q_a = "self_attn.#.q_a_proj";
  names.q_a_norm = "self_attn.#.q_a_layernorm";
  names.q_b = "self_attn.#.q_b_proj";
  names.kv_a = "self_attn.#.kv_a_proj_with_mqa";
  names.kv_a_norm = "self_attn.#.kv_a_layernorm";
  names.kv_b = "self_attn.#.kv_b_proj";
  names.o = "self_attn.#.o_proj";
  names.mlp = "mlps.#";
  names.router = "router.classifier";
  names.correction_bias = true;
  names.correction_bias_name = "router.e_score_correction_bias";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "LongcatFlashForCausalLM",
                                 .model_type = "longcat_flash",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .mtp = true,
                                 .tool_parser = "longcat"}};

}  // namespace

std::span<const Family> LongcatFlashFamily() { return kFamilies; }

}  // namespace switchyard
