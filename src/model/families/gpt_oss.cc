// gpt-oss-20b and 120b: attention sinks, sliding window in every other layer, biases everywhere,
// clamped SwiGLU, and MXFP4 experts with interleaved gate and up rows.
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// The defaults of the published configuration for absent RoPE settings.
constexpr double kTheta = 150000.0;
RopeConfig DefaultRope(int64_t rotary_dim) {
  return {.type = RopeConfig::Type::kYarn,
          .theta = kTheta,
          .factor = 32.0,
          .original_max_position = 4096,
          .truncate = false,
          .rotary_dim = rotary_dim};
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadGroupedAttention(reader, 64, config);
  AttentionConfig& a = config->attention;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", true);
  if (reader.Has("rope_parameters") || reader.Has("rope_scaling")) {
    ReadRope(reader, kTheta, a.head_dim, config);
  } else {
    config->rope = DefaultRope(a.head_dim);
    config->rope.theta = reader.DoubleOr({"rope_theta"}, kTheta, 1.0, 1e15);
    if (a.head_dim % 2 != 0) {
      throw Invalid("{} is {}; want an even number", reader.Where("head_dim"), a.head_dim);
    }
  }
  const int64_t window = reader.IntOr({"sliding_window"}, 128, 1, INT32_MAX);
  if (!ReadLayerTypes(reader, window, config)) {
    for (int64_t i = 0; i < config->num_layers(); i += 2) {
      config->layers[i].window = static_cast<int32_t>(window);
    }
  }
  for (LayerConfig& layer : config->layers) layer.sinks = true;
  MarkAllMoe(config);
  config->moe = ReadMoe(reader, {"intermediate_size"});
  config->moe->router.scoring = RouterConfig::Scoring::kTopKSoftmax;
  config->activation = kernels::Activation::kSwiGluClamped;
  config->swiglu_alpha = static_cast<float>(reader.DoubleOr({"swiglu_alpha"}, 1.702, 0.0, 1e6));
  config->swiglu_limit = static_cast<float>(reader.DoubleOr({"swiglu_limit"}, 7.0, 0.0, 1e6));
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.router = "router";
  names.router_bias = names.expert_biases = names.interleaved_experts = true;
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "GptOssForCausalLM",
                                 .model_type = "gpt_oss",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .tool_parser = "gpt-oss",
                                 .reasoning_parser = "gpt-oss"}};

}  // namespace

std::span<const Family> GptOssFamily() { return kFamilies; }

}  // namespace switchyard
