// AFMoE (Arcee Trinity): sigmoid router with a selection bias, norms before and after attention and
// feed-forward, and an attention whose output is gated. Layers that attend to all tokens have no
// rotary embedding.
#include <cmath>

#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadWindows(const ConfigReader& reader, ModelConfig* config) {
  const int64_t window = reader.IntOr({"sliding_window"}, 1024, 1, INT32_MAX);
  if (!ReadLayerTypes(reader, window, config)) {
    const int64_t every = reader.IntOr({"global_attn_every_n_layers"}, 4, 1, kMaxCount);
    for (int64_t i = 0; i < config->num_layers(); ++i)
      if ((i + 1) % every != 0) config->layers[i].window = static_cast<int32_t>(window);
  }
  RotateWindowsOnly(config);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadDenseIntermediate(reader, config);
  if (reader.BoolOr("mup_enabled", false))
    config->embedding_scale = std::sqrt(static_cast<float>(config->hidden));
  ReadGroupedAttention(reader, 128, config);
  AttentionConfig& a = config->attention;
  a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  a.gate = true;
  ReadRope(reader, 10000.0, a.head_dim, config);
  ReadWindows(reader, config);
  const int64_t dense = reader.IntOr({"num_dense_layers"}, 1, 0, kMaxCount);
  for (int64_t i = dense; i < config->num_layers(); ++i) config->layers[i].moe = true;
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  RequireString(reader, "score_func", "sigmoid");
  RouterConfig& router = config->moe->router;
  router.scoring = RouterConfig::Scoring::kSigmoid;
  router.renormalize = true;
  router.routed_scaling_factor =
      static_cast<float>(reader.DoubleOr({"route_scale"}, 1.0, 0.0, 1e6));
  ReadSharedExperts(reader, {"num_shared_experts"}, 2, config);
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names = NamesWithCorrectionBias(config);
  names.post_attention_norm = "pre_mlp_layernorm";
  names.attention_output_norm = "post_attention_layernorm";
  names.feed_forward_output_norm = "post_mlp_layernorm";
  names.router = "router.gate";
  names.correction_bias_name = "expert_bias";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "AfmoeForCausalLM",
                                 .model_type = "afmoe",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .tool_parser = "qwen25",
                                 .reasoning_parser = "qwen3"}};

}  // namespace

std::span<const Family> AfmoeFamily() { return kFamilies; }

}  // namespace switchyard
