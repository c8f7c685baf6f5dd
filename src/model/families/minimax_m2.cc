// MiniMax-M2: Mixtral's tensors, a sigmoid router with a correction bias, and norms over the whole
// q and k projections. A part of each head is rotated.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-6, config);
  ReadGroupedAttention(reader, 128, config);
  AttentionConfig& a = config->attention;
  RequireString(reader, "scoring_func", "sigmoid");
  RequireTrue(reader, "use_qk_norm");
  RequireString(reader, "qk_norm_type", "per_layer");
  a.qk_norm = AttentionConfig::QkNorm::kWhole;
  // Published checkpoints have rotary_dim instead of partial_rotary_factor.
  const int64_t rotary = reader.IntOr({"rotary_dim"}, a.head_dim, 1, a.head_dim);
  ReadRope(reader, 5e6, a.head_dim, config,
           static_cast<double>(rotary) / static_cast<double>(a.head_dim));
  MarkAllMoe(config);
  config->moe = ReadMoe(reader, {"intermediate_size"});
  RouterConfig& router = config->moe->router;
  router.scoring = RouterConfig::Scoring::kSigmoid;
  router.renormalize = true;
}

TensorNames Names(const ModelConfig& config) {
  TensorNames names = MixtralNames(config);
  names.correction_bias = true;
  names.correction_bias_name = "e_score_correction_bias";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "MiniMaxM2ForCausalLM",
                                 .model_type = "minimax_m2",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .tool_parser = "minimax-m2",
                                 .reasoning_parser = "minimax"}};

}  // namespace

std::span<const Family> MiniMaxM2Family() { return kFamilies; }

}  // namespace switchyard
