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
  RequireString(reader, "qk_norm_type", "per_layer");
  a.qk_norm = AttentionConfig::QkNorm::kWhole;
  // Published checkpoints have rotary_dim instead of partial_rotary_factor.
  const int64_t rotary = reader.IntOr({"rotary_dim"}, a.head_dim, 1, a.head_dim);
  ReadRope(reader, 5e6, a.head_dim, config,
           static_cast<double>(rotary) / static_cast<double>(a.head_dim));
  for (LayerConfig& layer : config->layers) layer.moe = true;
  config->moe = ReadMoe(reader, {"intermediate_size"});
  RouterConfig& router = config->moe->router;
  router.scoring = RouterConfig::Scoring::kSigmoid;
  router.renormalize = true;
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.moe = "block_sparse_moe";
  names.moe_alternative = "mlp";  // transformers 5's own modules, with fused experts
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  names.correction_bias = true;
  names.correction_bias_name = "e_score_correction_bias";
  return names;
}

constexpr Family kFamilies[] = {{"MiniMaxM2ForCausalLM", "minimax_m2", ReadConfig, Names}};

}  // namespace

std::span<const Family> MiniMaxM2Family() { return kFamilies; }

}  // namespace switchyard
