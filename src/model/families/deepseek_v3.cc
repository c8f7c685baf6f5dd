// DeepSeek-V3 and R1, Kimi-K2, Moonlight: latent attention; sigmoid router with a correction bias
// that affects only the selection, and groups scored by the sum of their two best experts.
// GLM-4.7-Flash is the same with other defaults.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

struct Defaults {
  double norm_eps;
  int64_t dense_layers;
  NoAuxDefaults router;
};

void Read(const ConfigReader& reader, const Defaults& defaults, ModelConfig* config) {
  ReadCommon(reader, defaults.norm_eps, config);
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  ReadRope(reader, 10000.0, config->attention.qk_rope_head_dim, config);
  config->rope.interleaved = reader.BoolOr("rope_interleave", true);
  ScaleLatentScores(config);
  if (!ReadMlpLayerTypes(reader, config)) MarkMoeLayersAfter(reader, defaults.dense_layers, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  ReadNoAuxRouter(reader, defaults.router, &config->moe->router);
  ReadSharedExperts(reader, {"n_shared_experts"}, 1, config);
}

void ReadDeepseek(const ConfigReader& reader, ModelConfig* config) {
  Read(reader,
       {.norm_eps = 1e-6,
        .dense_layers = 3,
        .router = {.scale = 2.5, .groups = 8, .topk_groups = 4}},
       config);
}

void ReadGlmLite(const ConfigReader& reader, ModelConfig* config) {
  Read(reader, {.norm_eps = 1e-5, .dense_layers = 1, .router = {.scale = 1.8}}, config);
}

constexpr Family kFamilies[] = {
    {.architecture = "DeepseekV3ForCausalLM",
     .model_type = "deepseek_v3",
     .read_config = ReadDeepseek,
     .names = NamesWithCorrectionBias,
     .mtp = true,
     .tool_parser = "deepseekv3",
     .reasoning_parser = "deepseek-r1"},
    {.architecture = "DeepseekV3ForCausalLM",
     .model_type = "kimi_k2",
     .read_config = ReadDeepseek,
     .names = NamesWithCorrectionBias,
     .mtp = true,
     .tool_parser = "kimi_k2",
     .reasoning_parser = "kimi_k2"},
    {.architecture = "Glm4MoeLiteForCausalLM",
     .model_type = "glm4_moe_lite",
     .read_config = ReadGlmLite,
     .names = NamesWithCorrectionBias,
     .mtp = true,
     .tool_parser = "glm45",
     .reasoning_parser = "glm45"},
};

}  // namespace

std::span<const Family> DeepseekV3Family() { return kFamilies; }

}  // namespace switchyard
