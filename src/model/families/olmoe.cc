// OLMoE-1B-7B: one norm over the whole q projection and one over the whole k projection.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadGroupedAttention(reader, 0, config);
  AttentionConfig& a = config->attention;
  a.qk_norm = AttentionConfig::QkNorm::kWhole;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  if (reader.Has("clip_qkv")) {
    a.clip_qkv = static_cast<float>(reader.Double({"clip_qkv"}, 1e-30, 1e30));
  }
  ReadRope(reader, 10000.0, a.head_dim, config);
  MarkAllMoe(config);
  config->moe = ReadMoe(reader, {"intermediate_size"});
  config->moe->router.renormalize = reader.BoolOr("norm_topk_prob", false);
}

constexpr Family kFamilies[] = {{.architecture = "OlmoeForCausalLM",
                                 .model_type = "olmoe",
                                 .read_config = ReadConfig,
                                 .names = DefaultNames}};

}  // namespace

std::span<const Family> OlmoeFamily() { return kFamilies; }

}  // namespace switchyard
