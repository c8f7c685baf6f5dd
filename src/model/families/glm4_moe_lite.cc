// GLM-4.7-Flash: DeepSeek-V3's attention and router, with other defaults.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  ReadRope(reader, 10000.0, config->attention.qk_rope_head_dim, config);
  config->rope.interleaved = reader.BoolOr("rope_interleave", true);
  ScaleLatentScores(config);
  if (!ReadMlpLayerTypes(reader, config)) MarkMoeLayersAfter(reader, 1, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, true, 1.8, &config->moe->router);
  config->moe->shared_intermediate =
      reader.IntOr({"n_shared_experts"}, 1, 0, kMaxCount) * config->moe->intermediate;
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.correction_bias = true;
  return names;
}

constexpr Family kFamilies[] = {
    {"Glm4MoeLiteForCausalLM", "glm4_moe_lite", ReadConfig, Names, /*mtp=*/true}};

}  // namespace

std::span<const Family> Glm4MoeLiteFamily() { return kFamilies; }

}  // namespace switchyard
