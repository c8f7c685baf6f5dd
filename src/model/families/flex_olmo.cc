// FlexOlmo: OLMoE's experts and norms of q and k. Norms follow attention and the feed-forward and
// do not precede them.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadGroupedAttention(reader, 0, config);
  AttentionConfig& a = config->attention;
  a.qk_norm = AttentionConfig::QkNorm::kWhole;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  ReadRope(reader, 500000.0, a.head_dim, config);
  MarkAllMoe(config);
  config->moe = ReadMoe(reader, {"intermediate_size"});
  config->moe->router.renormalize = reader.BoolOr("norm_topk_prob", false);
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.input_norm = names.post_attention_norm = "";
  names.attention_output_norm = "post_attention_layernorm";
  names.feed_forward_output_norm = "post_feedforward_layernorm";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "FlexOlmoForCausalLM",
                                 .model_type = "flex_olmo",
                                 .read_config = ReadConfig,
                                 .names = Names}};

}  // namespace

std::span<const Family> FlexOlmoFamily() { return kFamilies; }

}  // namespace switchyard
