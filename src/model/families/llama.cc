// Llama 2 and 3, and Mistral, which adds a sliding window: dense decoders.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadDense(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  ReadRope(reader, 10000.0, config->attention.head_dim, config);
}

void ReadLlama(const ConfigReader& reader, ModelConfig* config) {
  ReadDense(reader, config);
  AttentionConfig& a = config->attention;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  RequireFalse(reader, "mlp_bias");
}

void ReadMistral(const ConfigReader& reader, ModelConfig* config) {
  ReadDense(reader, config);
  // null means no sliding window; if the key is absent, transformers' MistralConfig has 4096.
  const int64_t absent = reader.IsNull("sliding_window") ? 0 : 4096;
  const int64_t window = reader.IntOr({"sliding_window"}, absent, 0, INT32_MAX);
  for (LayerConfig& layer : config->layers) layer.window = static_cast<int32_t>(window);
}

constexpr Family kFamilies[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .read_config = ReadLlama,
     .names = DefaultNames,
     .tool_parser = "llama3"},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .read_config = ReadMistral,
     .names = DefaultNames,
     .tool_parser = "mistral"},
};

}  // namespace

std::span<const Family> LlamaFamily() { return kFamilies; }

}  // namespace switchyard
