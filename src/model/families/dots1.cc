// dots.llm1: DeepSeek-V3's router with Qwen3's attention; late layers may have a sliding window.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadWindows(const ConfigReader& reader, ModelConfig* config) {
  const bool none = reader.IsNull("sliding_window");
  const int64_t window = none ? 0 : reader.IntOr({"sliding_window"}, 4096, 1, INT32_MAX);
  if (ReadLayerTypes(reader, window, config)) return;
  const int64_t full = reader.IntOr({"max_window_layers"}, 62, 0, kMaxCount);
  for (int64_t i = full; i < config->num_layers(); ++i)
    config->layers[i].window = static_cast<int32_t>(window);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  AttentionConfig& a = config->attention;
  a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  ReadRope(reader, 10000.0, a.head_dim, config);
  MarkMoeLayersAfter(reader, 0, config);
  ReadWindows(reader, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, {.renormalizes = false}, &config->moe->router);
  ReadSharedExperts(reader, {"n_shared_experts"}, 0, config);
}

constexpr Family kFamilies[] = {{.architecture = "Dots1ForCausalLM",
                                 .model_type = "dots1",
                                 .read_config = ReadConfig,
                                 .names = NamesWithCorrectionBias}};

}  // namespace

std::span<const Family> Dots1Family() { return kFamilies; }

}  // namespace switchyard
