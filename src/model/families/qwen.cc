// Dense Qwen2 (biases on q, k and v) and Qwen3 (a norm on each head of q and k).
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// With use_sliding_window, layers from max_window_layers on use a sliding window.
void ReadWindows(const ConfigReader& reader, ModelConfig* config) {
  const bool slides = reader.BoolOr("use_sliding_window", false);
  if (!slides) reader.Ignore({"sliding_window"});
  const int64_t window = slides ? reader.IntOr({"sliding_window"}, 4096, 1, INT32_MAX) : 0;
  if (ReadLayerTypes(reader, window, config) || !slides) return;
  for (int64_t i = reader.IntOr({"max_window_layers"}, 28, 0, kMaxCount); i < config->num_layers();
       ++i) {
    config->layers[i].window = static_cast<int32_t>(window);
  }
}

void ReadDense(const ConfigReader& reader, int64_t default_head_dim, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, default_head_dim, config);
  ReadRope(reader, 10000.0, config->attention.head_dim, config);
  ReadWindows(reader, config);
}

void ReadQwen2(const ConfigReader& reader, ModelConfig* config) {
  ReadDense(reader, 0, config);
  config->attention.qkv_bias = true;
}

void ReadQwen3(const ConfigReader& reader, ModelConfig* config) {
  ReadDense(reader, 128, config);
  AttentionConfig& a = config->attention;
  a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
}

constexpr Family kFamilies[] = {
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .read_config = ReadQwen3,
     .names = DefaultNames,
     .tool_parser = "qwen25",
     .reasoning_parser = "qwen3"},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .read_config = ReadQwen2,
     .names = DefaultNames,
     .tool_parser = "qwen25"},
};

}  // namespace

std::span<const Family> QwenFamily() { return kFamilies; }

}  // namespace switchyard
