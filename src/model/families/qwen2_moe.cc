// Qwen1.5-MoE and Qwen2-57B-A14B: routed experts and a shared expert with a sigmoid gate.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// Without layer_types, transformers uses a sliding window in every other one of the first
// max_window_layers layers.
void ReadWindows(const ConfigReader& reader, ModelConfig* config) {
  const bool slides = reader.BoolOr("use_sliding_window", false);
  if (!slides) reader.Ignore({"sliding_window"});
  const int64_t window = slides ? reader.IntOr({"sliding_window"}, 4096, 1, INT32_MAX) : 0;
  if (ReadLayerTypes(reader, window, config) || !slides) return;
  const int64_t until = reader.IntOr({"max_window_layers"}, 28, 0, kMaxCount);
  for (int64_t i = 0; i < config->num_layers() && i < until; i += 2) {
    config->layers[i].window = static_cast<int32_t>(window);
  }
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadGroupedAttention(reader, 0, config);
  config->attention.qkv_bias = reader.BoolOr("qkv_bias", true);
  ReadRope(reader, 10000.0, config->attention.head_dim, config);
  MarkSparseLayers(reader, config);
  ReadWindows(reader, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  config->moe->router.renormalize = reader.BoolOr("norm_topk_prob", false);
  config->moe->shared_intermediate =
      reader.IntOr({"shared_expert_intermediate_size"}, 5632, 1, kMaxWidth);
  config->moe->shared_gate = true;
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.shared = "shared_expert";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "Qwen2MoeForCausalLM",
                                 .model_type = "qwen2_moe",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .tool_parser = "qwen25"}};

}  // namespace

std::span<const Family> Qwen2MoeFamily() { return kFamilies; }

}  // namespace switchyard
