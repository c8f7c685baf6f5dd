// DeepSeek-V3 and R1, Kimi-K2, Moonlight: latent attention; sigmoid router with a correction bias
// that affects only the selection, and groups scored by the sum of their two best experts.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadRouter(const ConfigReader& reader, RouterConfig* router) {
  RequireString(reader, "scoring_func", "sigmoid");
  RequireString(reader, "topk_method", "noaux_tc");
  router->scoring = RouterConfig::Scoring::kSigmoid;
  router->group_score = RouterConfig::GroupScore::kTop2Sum;
  router->renormalize = reader.BoolOr("norm_topk_prob", true);
  router->routed_scaling_factor =
      static_cast<float>(reader.DoubleOr({"routed_scaling_factor"}, 2.5, 0.0, 1e6));
  ReadGroups(reader, 8, 4, router);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  ReadRope(reader, 10000.0, config->attention.qk_rope_head_dim, config);
  config->rope.interleaved = reader.BoolOr("rope_interleave", true);
  ScaleLatentScores(config);
  MarkMoeLayersAfter(reader, 3, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadRouter(reader, &config->moe->router);
  config->moe->shared_intermediate =
      reader.IntOr({"n_shared_experts"}, 1, 0, kMaxCount) * config->moe->intermediate;
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.correction_bias = true;
  return names;
}

constexpr Family kFamilies[] = {
    {"DeepseekV3ForCausalLM", "deepseek_v3", ReadConfig, Names, /*mtp=*/true},
    {"DeepseekV3ForCausalLM", "kimi_k2", ReadConfig, Names, /*mtp=*/true},
};

}  // namespace

std::span<const Family> DeepseekV3Family() { return kFamilies; }

}  // namespace switchyard
