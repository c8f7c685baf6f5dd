// Hunyuan-A13B: a softmax router, a shared expert, and norms of each head of q and k that follow
// the rotary embedding.
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

// A number, or a list with a number for each layer. Layers that differ are not supported.
int64_t ReadUniform(const ConfigReader& reader, std::string_view key, int64_t fallback, int64_t min,
                    int64_t max) {
  const auto values = reader.Ints(key, min, max);
  if (values.empty()) return fallback;
  for (const int64_t value : values)
    if (value != values.front())
      throw Invalid("{} differs between layers ({} and {}), which is not supported",
                    reader.Where(key), values.front(), value);
  return values.front();
}

void ReadExperts(const ConfigReader& reader, ModelConfig* config) {
  const int64_t intermediate = reader.Int({"intermediate_size"}, 1, kMaxWidth);
  MoeModelConfig& moe = config->moe.emplace();
  moe.router.num_experts = static_cast<int>(ReadUniform(reader, "num_experts", 1, 1, kMaxCount));
  moe.router.top_k = static_cast<int>(ReadUniform(reader, "moe_topk", 1, 1, kMaxCount));
  CheckTopK(reader, "moe_topk", moe.router);
  moe.router.renormalize = true;
  moe.intermediate = ReadUniform(reader, "moe_intermediate_size", intermediate, 1, kMaxWidth);
  const int64_t shared = ReadUniform(reader, "num_shared_expert", 1, 0, kMaxCount);
  if (reader.BoolOr("use_mixed_mlp_moe", true)) moe.shared_intermediate = intermediate * shared;
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  ReadCommon(reader, 1e-5, config);
  ReadGroupedAttention(reader, reader.IntOr({"attention_head_dim"}, 0, 0, kMaxWidth), config);
  AttentionConfig& a = config->attention;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  if (reader.BoolOr("use_qk_norm", true)) a.qk_norm = AttentionConfig::QkNorm::kPerHead;
  a.norm_after_rope = true;
  ReadRope(reader, 10000.0, a.head_dim, config);
  MarkAllMoe(config);
  ReadExperts(reader, config);
}

TensorNames Names(const ModelConfig&) {
  TensorNames names;
  names.q_norm = "self_attn.query_layernorm";
  names.k_norm = "self_attn.key_layernorm";
  names.router = "gate.wg";
  names.shared = "shared_mlp";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "HunYuanMoEV1ForCausalLM",
                                 .model_type = "hunyuan_v1_moe",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .tool_parser = "hunyuan_a13b",
                                 .reasoning_parser = "hunyuan_a13b"}};

}  // namespace

std::span<const Family> HunyuanV1MoeFamily() { return kFamilies; }

}  // namespace switchyard
