// Qwen3-30B-A3B, Qwen3-235B-A22B and similar: a norm on each head of q and k, no shared expert.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  RequireTrue(reader, "use_qk_norm");  // in configs of Qwen3-Coder
  AttentionConfig& a = config->attention;
  a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  ReadRope(reader, 10000.0, a.head_dim, config);
  MarkSparseLayers(reader, config);
  reader.Ignore({"sliding_window"});  // without use_sliding_window
  if (reader.BoolOr("use_sliding_window", false)) {
    const int64_t window = reader.IntOr({"sliding_window"}, 4096, 1, INT32_MAX);
    for (LayerConfig& layer : config->layers) layer.window = static_cast<int32_t>(window);
  }
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  config->moe->router.renormalize = reader.BoolOr("norm_topk_prob", false);
}

constexpr Family kFamilies[] = {{.architecture = "Qwen3MoeForCausalLM",
                                 .model_type = "qwen3_moe",
                                 .read_config = ReadConfig,
                                 .names = DefaultNames,
                                 .tool_parser = "qwen25",
                                 .reasoning_parser = "qwen3"}};

}  // namespace

std::span<const Family> Qwen3MoeFamily() { return kFamilies; }

}  // namespace switchyard
