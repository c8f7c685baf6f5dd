// GLM-4.5 and GLM-4.5-Air: DeepSeek-V3's router with grouped-query attention; half of each head is
// rotated.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  AttentionConfig& a = config->attention;
  a.qkv_bias = reader.BoolOr("attention_bias", false);
  if (reader.BoolOr("use_qk_norm", false)) a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  ReadRope(reader, 10000.0, a.head_dim, config, 0.5);
  MarkMoeLayersAfter(reader, 1, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, true, 1.0, &config->moe->router);
  config->moe->shared_intermediate =
      reader.IntOr({"n_shared_experts"}, 1, 0, kMaxCount) * config->moe->intermediate;
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.correction_bias = true;
  return names;
}

constexpr Family kFamilies[] = {
    {"Glm4MoeForCausalLM", "glm4_moe", ReadConfig, Names, /*mtp=*/true}};

}  // namespace

std::span<const Family> Glm4MoeFamily() { return kFamilies; }

}  // namespace switchyard
