// Solar Open: DeepSeek-V3's router in every layer, and grouped-query attention without norms.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadGroupedAttention(reader, 128, config);
  config->attention.qkv_bias = reader.BoolOr("attention_bias", false);
  ReadRope(reader, 1e6, config->attention.head_dim, config);
  for (LayerConfig& layer : config->layers) layer.moe = true;
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

constexpr Family kFamilies[] = {{"SolarOpenForCausalLM", "solar_open", ReadConfig, Names}};

}  // namespace

std::span<const Family> SolarOpenFamily() { return kFamilies; }

}  // namespace switchyard
