// Mixtral 8x7B and 8x22B: softmax router whose weights are always renormalised over the top k.
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadGroupedAttention(reader, 0, config);
  ReadRope(reader, 1e6, config->attention.head_dim, config);
  const auto window = reader.IntOr({"sliding_window"}, 0, 0, INT32_MAX);
  for (LayerConfig& layer : config->layers) {
    layer = {.moe = true, .window = static_cast<int32_t>(window)};
  }
  config->moe = ReadMoe(reader, {"intermediate_size"});
  config->moe->router.renormalize = true;
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.moe = "block_sparse_moe";
  names.moe_alternative = "mlp";  // transformers 5's own modules, with fused experts
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  return names;
}

constexpr Family kFamilies[] = {{"MixtralForCausalLM", "mixtral", ReadConfig, Names}};

}  // namespace

std::span<const Family> MixtralFamily() { return kFamilies; }

}  // namespace switchyard
