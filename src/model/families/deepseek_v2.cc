// DeepSeek-V2 and V2-Lite: latent attention and a softmax router. The router selects over all
// experts, or over the experts of the best groups; a group's score is that of its best expert.
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadRouter(const ConfigReader& reader, RouterConfig* router) {
  RequireString(reader, "scoring_func", "softmax");
  const std::string method = reader.StringOr({"topk_method"}, "greedy");
  if (method == "group_limited_greedy") {
    router->group_score = RouterConfig::GroupScore::kMax;
    ReadGroups(reader, 1, 1, router);
  } else if (method != "greedy") {
    throw Invalid("{} is \"{}\"; want greedy or group_limited_greedy", reader.Where("topk_method"),
                  method);
  }
  reader.Ignore({"n_group", "topk_group", "routed_scaling_factor"});
  // DeepSeek's published code either normalises the router weights or scales them.
  router->renormalize = reader.BoolOr("norm_topk_prob", false) && router->top_k > 1;
  if (!router->renormalize) {
    router->routed_scaling_factor =
        static_cast<float>(reader.DoubleOr({"routed_scaling_factor"}, 1.0, 0.0, 1e6));
  }
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  RequireFalse(reader, "mlp_bias");
  ReadRope(reader, 10000.0, config->attention.qk_rope_head_dim, config);
  config->rope.interleaved = true;
  ScaleLatentScores(config);
  if (!reader.Has("n_routed_experts")) return;  // a dense model
  MarkMoeLayersAfter(reader, 0, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadRouter(reader, &config->moe->router);
  ReadSharedExperts(reader, {"n_shared_experts"}, 0, config);
}

constexpr Family kFamilies[] = {{.architecture = "DeepseekV2ForCausalLM",
                                 .model_type = "deepseek_v2",
                                 .read_config = ReadConfig,
                                 .names = DefaultNames}};

}  // namespace

std::span<const Family> DeepseekV2Family() { return kFamilies; }

}  // namespace switchyard
