// Granite 3 MoE, without and with a shared expert: Mixtral's layers with constant multipliers of
// the embedding, the attention scores, the layers' outputs and the logits.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// The residual stream is held divided by the residual multiplier r. Then layers add their outputs
// unscaled, and the stream starts with the embedding times embedding_multiplier / r. A norm of the
// stream is the same if its epsilon is divided by r².
void ReadMultipliers(const ConfigReader& reader, ModelConfig* config) {
  const double r = reader.DoubleOr({"residual_multiplier"}, 1.0, 1e-4, 1e4);
  const double embedding = reader.DoubleOr({"embedding_multiplier"}, 1.0, 0.0, 1e6);
  config->embedding_scale = static_cast<float>(embedding / r);
  config->norm_eps = static_cast<float>(config->norm_eps / (r * r));
  config->attention.scale =
      static_cast<float>(reader.DoubleOr({"attention_multiplier"}, 1.0, 1e-6, 1e6));
  config->logit_scale =
      static_cast<float>(1.0 / reader.DoubleOr({"logits_scaling"}, 1.0, 1e-6, 1e6));
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadGroupedAttention(reader, 0, config);
  AttentionConfig& a = config->attention;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  ReadRope(reader, 10000.0, a.head_dim, config);
  ReadMultipliers(reader, config);
  MarkAllMoe(config);
  config->moe = ReadMoe(reader, {"intermediate_size"});
  config->moe->router.scoring = RouterConfig::Scoring::kTopKSoftmax;
}

void ReadShared(const ConfigReader& reader, ModelConfig* config) {
  ReadConfig(reader, config);
  config->moe->shared_intermediate = reader.IntOr({"shared_intermediate_size"}, 0, 0, kMaxWidth);
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.moe = "block_sparse_moe";
  names.router = "router.layer";
  names.stacked_experts = true;
  names.stacked_gate_up = "input_linear.weight";
  names.stacked_down = "output_linear.weight";
  names.shared_gate_up = "shared_mlp.input_linear";
  names.shared_down = "shared_mlp.output_linear";
  return names;
}

constexpr Family kFamilies[] = {
    {.architecture = "GraniteMoeForCausalLM",
     .model_type = "granitemoe",
     .read_config = ReadConfig,
     .names = Names,
     .tool_parser = "granite"},
    {.architecture = "GraniteMoeSharedForCausalLM",
     .model_type = "granitemoeshared",
     .read_config = ReadShared,
     .names = Names,
     .tool_parser = "granite"},
};

}  // namespace

std::span<const Family> GraniteMoeFamily() { return kFamilies; }

}  // namespace switchyard
