// Ling 2 and Ring 2 (Bailing MoE V2), and Sarvam: DeepSeek-V3's router with grouped-query attention
// whose projections are stored as one. The MTP layer of Ling follows the last layer.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void Read(const ConfigReader& reader, double default_theta, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  AttentionConfig& a = config->attention;
  if (reader.BoolOr("use_qk_norm", true)) a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  a.qkv_bias = reader.BoolOr("use_qkv_bias", reader.BoolOr("attention_bias", false));
  RequireFalse(reader, "use_bias");
  const int64_t rotary = reader.IntOr({"rotary_dim"}, a.head_dim, 1, a.head_dim);
  ReadRope(reader, default_theta, a.head_dim, config,
           static_cast<double>(rotary) / static_cast<double>(a.head_dim));
  MarkMoeLayersAfter(reader, 1, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  RequireOneOf(reader, "score_function", {"sigmoid"});
  ReadNoAuxRouter(reader, {.scale = 2.5}, &config->moe->router);
  ReadSharedExperts(reader, {"num_shared_experts", "n_shared_experts"}, 1, config);
  const int64_t routed = config->moe->intermediate;
  config->moe->shared_intermediate =
      config->moe->shared_intermediate / routed *
      reader.IntOr({"moe_shared_expert_intermediate_size"}, routed, 1, kMaxWidth);
}

void ReadLing(const ConfigReader& reader, ModelConfig* config) { Read(reader, 600000.0, config); }
void ReadSarvam(const ConfigReader& reader, ModelConfig* config) { Read(reader, 8e6, config); }

TensorNames Names(const ModelConfig& config) {
  TensorNames names = NamesWithCorrectionBias(config);
  names.embedding = "model.word_embeddings.weight";
  names.qkv = "attention.query_key_value";
  names.o = "attention.dense";
  names.q_norm = "attention.query_layernorm";
  names.k_norm = "attention.key_layernorm";
  names.correction_bias_name = "gate.expert_bias";
  names.mtp_layer_norm = "final_layernorm";
  return names;
}

constexpr Family kFamilies[] = {
    {.architecture = "BailingMoeV2ForCausalLM",
     .model_type = "bailing_moe_v2",
     .read_config = ReadLing,
     .names = Names,
     .mtp = true,
     .tool_parser = "qwen25",
     .reasoning_parser = "qwen3"},
    {.architecture = "SarvamMoEForCausalLM",
     .model_type = "sarvam_moe",
     .read_config = ReadSarvam,
     .names = Names},
};

}  // namespace

std::span<const Family> BailingMoeV2Family() { return kFamilies; }

}  // namespace switchyard
