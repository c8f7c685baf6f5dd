// Mistral Small 4: DeepSeek-V3's attention, with queries scaled by their position, and a softmax
// router whose groups are scored by the sum of their two best experts.
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// The published rope_parameters.
constexpr int64_t kOriginalPositions = 8192;
constexpr double kTheta = 10000.0;

void ReadRotary(const ConfigReader& reader, ModelConfig* config) {
  AttentionConfig& a = config->attention;
  // partial_rotary_factor is relative to the whole head.
  const double part = static_cast<double>(a.qk_rope_head_dim) / static_cast<double>(a.head_dim);
  ReadRope(reader, kTheta, a.head_dim, config, part);
  config->rope.interleaved = reader.BoolOr("rope_interleave", true);
  const auto parameters = reader.Object("rope_parameters");
  if (!parameters) {
    RopeConfig& rope = config->rope;
    rope.type = RopeConfig::Type::kYarn;
    rope.factor = 128.0;
    rope.original_max_position = kOriginalPositions;
    rope.mscale = rope.mscale_all_dim = 1.0;
    a.query_scale_beta = 0.1;
    a.query_scale_positions = kOriginalPositions;
  } else if (parameters->Has("llama_4_scaling_beta")) {
    a.query_scale_beta = parameters->Double({"llama_4_scaling_beta"}, 0.0, 1e3);
    a.query_scale_positions =
        parameters->Int({"original_max_position_embeddings"}, 1, kMaxPosition);
  }
  if (config->rope.rotary_dim != a.qk_rope_head_dim)
    throw Invalid("{}: {} elements of a head would be rotated; want qk_rope_head_dim {}",
                  reader.Where("rope_parameters"), config->rope.rotary_dim, a.qk_rope_head_dim);
  if (a.head_dim % 2 != 0)
    throw Invalid("{} + qk_rope_head_dim is {}; want an even number",
                  reader.Where("qk_nope_head_dim"), a.head_dim);
  ScaleLatentScores(config);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadDenseIntermediate(reader, config);
  ReadLatentAttention(reader, config);
  ReadRotary(reader, config);
  MarkMoeLayersAfter(reader, 0, config);
  config->moe = ReadMoe(reader, {"moe_intermediate_size"});
  RouterConfig& router = config->moe->router;
  ReadNoAuxRouter(reader, {}, &router);
  router.scoring = RouterConfig::Scoring::kSoftmax;
  ReadSharedExperts(reader, {"n_shared_experts"}, 1, config);
}

constexpr Family kFamilies[] = {{.architecture = "Mistral4ForCausalLM",
                                 .model_type = "mistral4",
                                 .read_config = ReadConfig,
                                 .names = DefaultNames,
                                 .tool_parser = "mistral",
                                 .reasoning_parser = "mistral"}};

}  // namespace

std::span<const Family> Mistral4Family() { return kFamilies; }

}  // namespace switchyard
