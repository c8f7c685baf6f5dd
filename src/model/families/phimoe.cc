// Phi-3.5-MoE: Mixtral's tensors with LayerNorm, biases in attention and head, and the SparseMixer
// router.
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadRouter(const ConfigReader& reader, RouterConfig* router) {
  if (router->top_k != 2)
    throw Invalid("{} is {}; the SparseMixer router selects 2 experts",
                  reader.Where("num_experts_per_tok"), router->top_k);
  router->scoring = RouterConfig::Scoring::kSparseMixer;
  router->jitter = static_cast<float>(reader.DoubleOr({"router_jitter_noise"}, 0.01, 0.0, 1.0));
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  config->layer_norm = true;
  config->head_bias = reader.BoolOr("lm_head_bias", false);
  ReadGroupedAttention(reader, 0, config);
  AttentionConfig& a = config->attention;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  ReadRope(reader, 1e6, a.head_dim, config);
  if (config->rope.type != RopeConfig::Type::kDefault &&
      config->rope.type != RopeConfig::Type::kLongRope)
    throw Invalid("{}: want no scaling, or longrope, for this architecture",
                  reader.Where("rope_scaling"));
  MarkAllMoe(config);
  SetWindows(reader, config);
  config->moe = ReadMoe(reader, {"intermediate_size"});
  ReadRouter(reader, &config->moe->router);
}

constexpr Family kFamilies[] = {
    {.architecture = "PhimoeForCausalLM",
     .model_type = "phimoe",
     .read_config = ReadConfig,
     .names = MixtralNames},
    {.architecture = "PhiMoEForCausalLM",
     .model_type = "phimoe",
     .read_config = ReadConfig,
     .names = MixtralNames},
};

}  // namespace

std::span<const Family> PhimoeFamily() { return kFamilies; }

}  // namespace switchyard
