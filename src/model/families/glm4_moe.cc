// GLM-4.5 and GLM-4.5-Air: DeepSeek-V3's router with grouped-query attention; half of each head is
// rotated. Solar Open: the same without norms of q and k, with whole heads rotated and experts in
// every layer.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadExperts(const ConfigReader& reader, ModelConfig* config) {
  config->attention.qkv_bias = reader.BoolOr("attention_bias", false);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, {}, &config->moe->router);
  ReadSharedExperts(reader, {"n_shared_experts"}, 1, config);
}

void ReadGlm(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  AttentionConfig& a = config->attention;
  if (reader.BoolOr("use_qk_norm", false)) a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  ReadRope(reader, 10000.0, a.head_dim, config, 0.5);
  MarkMoeLayersAfter(reader, 1, config);
  ReadExperts(reader, config);
}

void ReadSolar(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadGroupedAttention(reader, 128, config);
  ReadRope(reader, 1e6, config->attention.head_dim, config);
  MarkAllMoe(config);
  ReadExperts(reader, config);
}

constexpr Family kFamilies[] = {
    {.architecture = "Glm4MoeForCausalLM",
     .model_type = "glm4_moe",
     .read_config = ReadGlm,
     .names = NamesWithCorrectionBias,
     .mtp = true,
     .tool_parser = "glm45",
     .reasoning_parser = "glm45"},
    {.architecture = "SolarOpenForCausalLM",
     .model_type = "solar_open",
     .read_config = ReadSolar,
     .names = NamesWithCorrectionBias,
     .tool_parser = "solar_open",
     .reasoning_parser = "solar_open"},
};

}  // namespace

std::span<const Family> Glm4MoeFamily() { return kFamilies; }

}  // namespace switchyard
