// K-EXAONE: DeepSeek-V3's router with Qwen3's attention. Most layers have a sliding window; the
// others attend to all tokens and have no rotary embedding. The MTP layer is dense.
#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// sliding_window_pattern: n (each n-th layer is full), or one letter for each layer, L (sliding) or
// G (full), repeated; the last layer is then full.
void ReadPattern(const ConfigReader& reader, int32_t window, ModelConfig* config) {
  constexpr std::string_view kKey = "sliding_window_pattern";
  const int64_t layers = config->num_layers();
  if (!reader.IsString(kKey)) {
    const int64_t every = reader.IntOr({kKey}, 4, 1, kMaxCount);
    for (int64_t i = 0; i < layers; ++i)
      if ((i + 1) % every != 0) config->layers[i].window = window;
    return;
  }
  const std::string letters = reader.StringOr({kKey}, "");
  if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
    throw Invalid("{} is \"{}\"; want a number, or the letters L and G", reader.Where(kKey),
                  letters);
  for (int64_t i = 0; i + 1 < layers; ++i)
    if (letters[i % letters.size()] == 'L') config->layers[i].window = window;
}

void ReadWindows(const ConfigReader& reader, ModelConfig* config) {
  if (reader.IsNull("sliding_window")) {
    ReadLayerTypes(reader, 0, config);
    return;
  }
  const int64_t window = reader.IntOr({"sliding_window"}, 4096, 1, INT32_MAX);
  if (!ReadLayerTypes(reader, window, config))
    ReadPattern(reader, static_cast<int32_t>(window), config);
  RotateWindowsOnly(config);
}

// Without keys of its own, the MTP layer has the attention of the first layer, as in vLLM and
// SGLang (exaone_moe_mtp.py).
void ReadMtpLayer(const ConfigReader& reader, ModelConfig* config) {
  LayerConfig layer = config->layers.front();
  layer.moe = false;
  const std::vector<std::string> types = reader.Strings("mtp_layer_types");
  const std::vector<int64_t> windows = reader.Ints("mtp_sliding_windows", 0, INT32_MAX);
  if (!types.empty()) {
    const bool slides = types.front() == "sliding_attention";
    if (!slides && types.front() != "full_attention")
      throw Invalid("{} holds \"{}\"; want sliding_attention or full_attention",
                    reader.Where("mtp_layer_types"), types.front());
    const int64_t window = !slides           ? 0
                           : windows.empty() ? reader.IntOr({"sliding_window"}, 4096, 1, INT32_MAX)
                                             : windows.front();
    layer.window = static_cast<int32_t>(window);
    layer.rope = slides || std::ranges::none_of(config->layers, [](const LayerConfig& other) {
                   return other.window > 0;
                 });
  }
  config->mtp_block = {layer};
}

// is_moe_layer repeats what other keys say.
void CheckMoeLayers(const ConfigReader& reader, const ModelConfig& config) {
  constexpr std::string_view kKey = "is_moe_layer";
  reader.Ignore({kKey});
  if (!reader.Has(kKey) || reader.IsNull(kKey)) return;
  std::string want;
  for (const LayerConfig& layer : config.layers) {
    want += want.empty() ? "[" : ", ";
    want += layer.moe ? "true" : "false";
  }
  want += "]";
  if (!reader.Equals(kKey, want))
    throw Invalid("{} is {}; the other keys give {}", reader.Where(kKey), reader.ValueText(kKey),
                  want);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  config->attention.qk_norm = AttentionConfig::QkNorm::kPerHead;
  ReadRope(reader, 10000.0, config->attention.head_dim, config);
  if (!ReadMlpLayerTypes(reader, config)) MarkMoeLayersAfter(reader, 1, config);
  CheckMoeLayers(reader, *config);
  ReadWindows(reader, config);
  ReadMtpLayer(reader, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, {.scale = 2.5}, &config->moe->router);
  ReadSharedExperts(reader, {"num_shared_experts"}, 1, config);
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names = NamesWithCorrectionBias(config);
  names.correction_bias_name = "e_score_correction_bias";
  names.mtp = "mtp.";
  return names;
}

constexpr Family kFamilies[] = {
    {.architecture = "ExaoneMoEForCausalLM",
     .model_type = "exaone_moe",
     .read_config = ReadConfig,
     .names = Names,
     .mtp = true,
     .tool_parser = "qwen25",
     .reasoning_parser = "qwen3"},
    {.architecture = "ExaoneMoeForCausalLM",
     .model_type = "exaone_moe",
     .read_config = ReadConfig,
     .names = Names,
     .mtp = true,
     .tool_parser = "qwen25",
     .reasoning_parser = "qwen3"},
};

}  // namespace

std::span<const Family> ExaoneMoeFamily() { return kFamilies; }

}  // namespace switchyard
