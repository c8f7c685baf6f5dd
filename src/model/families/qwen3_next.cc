// Qwen3-Next, and the text of Qwen3.5 and 3.6 MoE: three layers of gated DeltaNet for each layer of
// gated attention, zero-centred norms, softmax router and a shared expert with a sigmoid gate. The
// MTP layer is one of gated attention.
#include "core/error.h"
#include "kernels/recurrent.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// Without layer_types, every full_attention_interval-th layer attends to all tokens.
void ReadLayers(const ConfigReader& reader, ModelConfig* config) {
  const int64_t every = reader.IntOr({"full_attention_interval"}, 4, 1, kMaxCount);
  if (!ReadLinearLayerTypes(reader, config))
    for (int64_t i = 0; i < config->num_layers(); ++i)
      config->layers[i].linear = (i + 1) % every != 0;
  RequireFullLayer(reader, *config);
}

void ReadLinearAttention(const ConfigReader& reader, ModelConfig* config) {
  LinearAttentionConfig linear{
      .key_heads = reader.IntOr({"linear_num_key_heads"}, 16, 1, kMaxCount),
      .value_heads = reader.IntOr({"linear_num_value_heads"}, 32, 1, kMaxCount),
      .key_dim = reader.IntOr({"linear_key_head_dim"}, 128, 1, kMaxWidth),
      .value_dim = reader.IntOr({"linear_value_head_dim"}, 128, 1, kMaxWidth),
      .conv_width = reader.IntOr({"linear_conv_kernel_dim"}, 4, 1, kernels::kMaxConvWidth)};
  if (linear.value_heads % linear.key_heads != 0)
    throw Invalid("{} is {}, not a multiple of linear_num_key_heads {}",
                  reader.Where("linear_num_value_heads"), linear.value_heads, linear.key_heads);
  config->linear = linear;
}

void ReadAttention(const ConfigReader& reader, ModelConfig* config) {
  ReadGroupedAttention(reader, 256, config);
  AttentionConfig& a = config->attention;
  a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  a.gate = a.gate_in_q = true;
  ReadRope(reader, 10000.0, a.head_dim, config, 0.25);
}

void ReadShared(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  config->centred_norms = true;
  config->mtp_layers = 1;  // the published config.json of Qwen3-Next does not tell
  reader.Ignore({"mtp_use_dedicated_embeddings"});  // the tensors tell
  ReadAttention(reader, config);
  ReadLayers(reader, config);
  ReadLinearAttention(reader, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  config->moe->router.renormalize = true;
  config->moe->shared_intermediate =
      reader.IntOr({"shared_expert_intermediate_size"}, 512, 1, kMaxWidth);
  config->moe->shared_gate = true;
}

void ReadQwen3Next(const ConfigReader& reader, ModelConfig* config) {
  ReadShared(reader, config);
  ReadDenseIntermediate(reader, config);
  MarkSparseLayers(reader, config);
  config->moe->router.renormalize = reader.BoolOr("norm_topk_prob", true);
}

// The sections of mrope have the positions of images. Those of text are equal, as without sections.
void ReadQwen35(const ConfigReader& reader, ModelConfig* config) {
  ReadShared(reader, config);
  for (const char* name : {"rope_parameters", "rope_scaling"})
    if (const auto rotary = reader.Object(name)) rotary->Ignore({"mrope_section"});
  RequireTrue(reader, "attn_output_gate");
  config->linear->separate = true;
  MarkAllMoe(config);
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.shared = "shared_expert";
  names.mtp = "mtp.";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "Qwen3NextForCausalLM",
                                 .model_type = "qwen3_next",
                                 .read_config = ReadQwen3Next,
                                 .names = Names,
                                 .mtp = true,
                                 .tool_parser = "qwen25",
                                 .reasoning_parser = "qwen3"},
                                {.architecture = "Qwen3_5MoeForCausalLM",
                                 .model_type = "qwen3_5_moe_text",
                                 .read_config = ReadQwen35,
                                 .names = Names,
                                 .mtp = true,
                                 .tool_parser = "qwen3_coder",
                                 .reasoning_parser = "qwen3"}};

}  // namespace

std::span<const Family> Qwen3NextFamily() { return kFamilies; }

}  // namespace switchyard
