// DeepSeek-V4: residual streams, attention to a sliding window and to compressed entries, and MoE
// layers of which the first ones route by token ids. The MTP layer attends to a sliding window
// only. docs/notes/deepseek_v4.md describes the parts.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/families/common.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

constexpr std::string_view kSliding = "sliding_attention";
constexpr std::string_view kOverlapping = "compressed_sparse_attention";
constexpr std::string_view kSeparate = "heavily_compressed_attention";
constexpr int64_t kHashLayers = 3;  // absent num_hash_layers
constexpr int64_t kMaxRatio = 4096;

// Positions of an entry, by the kind of its layer.
struct Ratios {
  int64_t overlapping = 4, separate = 128;
};

Ratios ReadRatios(const ConfigReader& reader) {
  Ratios ratios;
  const auto rates = reader.Object("compress_rates");
  if (rates) {
    ratios.overlapping = rates->IntOr({kOverlapping}, ratios.overlapping, 1, kMaxRatio);
    ratios.separate = rates->IntOr({kSeparate}, ratios.separate, 1, kMaxRatio);
  }
  ratios.overlapping = reader.IntOr({"compress_rate_csa"}, ratios.overlapping, 1, kMaxRatio);
  ratios.separate = reader.IntOr({"compress_rate_hca"}, ratios.separate, 1, kMaxRatio);
  return ratios;
}

// A list with an entry for each layer, and possibly for MTP layers after them.
void CheckLength(const ConfigReader& reader, std::string_view key, size_t size,
                 const ModelConfig& config) {
  if (std::cmp_less(size, config.num_layers()))
    throw Invalid("{} has {} entries; want one for each of the {} layers", reader.Where(key), size,
                  config.num_layers());
}

// The kind of each layer: from layer_types; else from compress_ratios, as published (0, 4 or 128);
// else the default of transformers: two separate ones, then both kinds in turn.
std::vector<std::string> ReadKinds(const ConfigReader& reader, const ModelConfig& config) {
  constexpr std::string_view kTypes = "layer_types", kPublished = "compress_ratios";
  std::vector<std::string> kinds = reader.Strings(kTypes);
  const std::vector<int64_t> published = reader.Ints(kPublished, 0, kMaxRatio);
  if (!kinds.empty()) {
    CheckLength(reader, kTypes, kinds.size(), config);
  } else if (!published.empty()) {
    CheckLength(reader, kPublished, published.size(), config);
    for (const int64_t ratio : published) {
      if (ratio != 0 && ratio != 4 && ratio != 128)
        throw Invalid("{} holds {}; want 0, 4 or 128", reader.Where(kPublished), ratio);
      kinds.emplace_back(ratio == 0 ? kSliding : ratio == 4 ? kOverlapping : kSeparate);
    }
  } else {
    for (int64_t i = 0; i < config.num_layers(); ++i)
      kinds.emplace_back(i >= 2 && i % 2 != 0 ? kOverlapping : kSeparate);
  }
  for (const std::string& kind : kinds)
    if (kind != kSliding && kind != kOverlapping && kind != kSeparate)
      throw Invalid("{} holds \"{}\"; want {}, {} or {}", reader.Where(kTypes), kind, kSliding,
                    kOverlapping, kSeparate);
  return kinds;  // of all layers, and possibly of MTP layers
}

void ReadLayers(const ConfigReader& reader, ModelConfig* config) {
  const int64_t window = reader.IntOr({"sliding_window"}, 128, 1, INT32_MAX);
  const Ratios ratios = ReadRatios(reader);
  const std::vector<std::string> kinds = ReadKinds(reader, *config);
  constexpr std::string_view kMoeTypes = "mlp_layer_types";
  const auto moe = reader.Strings(kMoeTypes);
  const int64_t hashed = reader.IntOr({"num_hash_layers"}, kHashLayers, 0, kMaxCount);
  if (!moe.empty()) CheckLength(reader, kMoeTypes, moe.size(), *config);
  const auto layer_of = [&](std::string_view kind) {
    LayerConfig layer{.moe = true, .sinks = true, .window = static_cast<int32_t>(window)};
    layer.overlaps = kind == kOverlapping;
    if (kind != kSliding)
      layer.compress = static_cast<int32_t>(layer.overlaps ? ratios.overlapping : ratios.separate);
    return layer;
  };
  const auto layers = static_cast<size_t>(config->num_layers());
  config->mtp_block = {layer_of(kinds.size() > layers ? kinds[layers] : kSliding)};
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    LayerConfig& layer = config->layers[i];
    layer = layer_of(kinds[i]);
    if (!moe.empty() && moe[i] != "hash_moe" && moe[i] != "moe")
      throw Invalid("{} holds \"{}\"; want hash_moe or moe", reader.Where(kMoeTypes), moe[i]);
    layer.by_token = moe.empty() ? i < hashed : moe[i] == "hash_moe";
  }
}

void ReadAttention(const ConfigReader& reader, ModelConfig* config) {
  AttentionConfig& a = config->attention;
  a.kind = AttentionConfig::Kind::kCompressed;
  a.heads = reader.Int({"num_attention_heads"}, 1, kMaxCount);
  if (reader.IntOr({"num_key_value_heads"}, 1, 1, kMaxCount) != 1)
    throw Invalid("{}: want 1", reader.Where("num_key_value_heads"));
  a.kv_heads = 1;
  a.head_dim = reader.IntOr({"head_dim"}, 512, 2, kMaxWidth);
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
  a.q_lora_rank = reader.IntOr({"q_lora_rank"}, 1024, 1, kMaxWidth);
  a.output_groups = reader.IntOr({"o_groups"}, 8, 1, kMaxCount);
  a.output_rank = reader.IntOr({"o_lora_rank"}, 1024, 1, kMaxWidth);
  if (a.heads % a.output_groups != 0)
    throw Invalid("{} is {}, not a divisor of num_attention_heads {}", reader.Where("o_groups"),
                  a.output_groups, a.heads);
  a.index_heads = reader.IntOr({"index_n_heads"}, 64, 1, kMaxCount);
  a.index_head_dim = reader.IntOr({"index_head_dim"}, 128, 2, kMaxWidth);
  a.index_topk = reader.IntOr({"index_topk"}, 512, 1, kMaxWidth);
  RequireFalse(reader, "attention_bias");
  RequireFalse(reader, "mlp_bias");

  const int64_t rotated = reader.IntOr({"qk_rope_head_dim"}, 0, 0, kMaxWidth);
  const double part =
      rotated > 0 ? static_cast<double>(rotated) / static_cast<double>(a.head_dim) : 64.0 / 512.0;
  ReadRopeWithEntries(reader, {.theta = 160000.0, .part = part}, {.theta = 10000.0, .part = part},
                      a.head_dim, config);
  config->rope.interleaved = config->window_rope->interleaved = true;
  a.qk_rope_head_dim = config->rope.rotary_dim;
  if (config->window_rope->rotary_dim != a.qk_rope_head_dim)
    throw Invalid("{}: want equal values of partial_rotary_factor",
                  reader.Where("rope_parameters"));
  if (a.index_head_dim < a.qk_rope_head_dim)
    throw Invalid("{} is {}, less than the {} rotated elements of a head",
                  reader.Where("index_head_dim"), a.index_head_dim, a.qk_rope_head_dim);
}

void ReadExperts(const ConfigReader& reader, ModelConfig* config) {
  MoeModelConfig& moe = config->moe.emplace(ReadMoe(reader, {"moe_intermediate_size"}));
  RouterConfig& router = moe.router;
  router.scoring = RouterConfig::Scoring::kSqrtSoftplus;
  RequireOneOf(reader, "scoring_func", {"sqrtsoftplus"});
  RequireOneOf(reader, "topk_method", {"noaux_tc"});
  RequireTrue(reader, "norm_topk_prob");
  router.renormalize = true;
  router.routed_scaling_factor =
      static_cast<float>(reader.DoubleOr({"routed_scaling_factor"}, 1.5, 0.0, 1e6));
  ReadSharedExperts(reader, {"n_shared_experts"}, 1, config);
  if (moe.shared_intermediate != moe.intermediate)
    throw Invalid("{}: want 1", reader.Where("n_shared_experts"));
  config->activation = kernels::Activation::kSwiGluLimited;
  config->swiglu_limit = static_cast<float>(reader.DoubleOr({"swiglu_limit"}, 10.0, 1e-6, 1e6));
}

// Routers of these layers read token ids in float32 (Decoder::FillRouterRows).
void CheckTokenIds(const ConfigReader& reader, const ModelConfig& config) {
  constexpr int64_t kExact = int64_t{1} << 24;
  if (config.vocab_size > kExact && config.has_token_routing())
    throw Invalid("{} is {}; want at most {} with layers that route by token id",
                  reader.Where("vocab_size"), config.vocab_size, kExact);
}

void ReadConfig(const ConfigReader& reader, ModelConfig* config) {
  reader.Ignore({"expert_dtype"});  // of quantization_config
  ReadCommon(reader, 1e-6, config);
  ReadLayers(reader, config);
  CheckTokenIds(reader, *config);
  ReadAttention(reader, config);
  ReadExperts(reader, config);
  config->mtp_before_norm = true;
  config->streams = StreamsConfig{
      .count = reader.IntOr({"hc_mult"}, 4, 1, kernels::kMaxStreams),
      .iterations = static_cast<int>(reader.IntOr({"hc_sinkhorn_iters"}, 20, 1, 1000)),
      .eps = static_cast<float>(reader.DoubleOr({"hc_eps"}, 1e-6, 0.0, 1.0))};
}

// The names of DeepSeek's own code, which published checkpoints have.
TensorNames Names(const ModelConfig& config) {
  TensorNames names;
  names.mtp = "mtp.";
  names.mtp_layers.clear();
  names.mtp_embedding_norm = "0.enorm";
  names.mtp_hidden_norm = "0.hnorm";
  names.mtp_projection = "0.h_proj";
  names.mtp_embedding_projection = "0.e_proj";
  names.mtp_final_norm = "0.norm";
  names.mtp_embedding = "0.emb.tok_emb";
  names.mtp_head = "0.head";
  names.embedding = "embed.weight";
  names.final_norm = "norm.weight";
  names.head = "head.weight";
  names.layers = "layers.";
  names.input_norm = "attn_norm";
  names.post_attention_norm = "ffn_norm";
  names.q_a = "attn.wq_a";
  names.q_a_norm = "attn.q_norm";
  names.q_b = "attn.wq_b";
  names.k = "attn.wkv";
  names.k_norm = "attn.kv_norm";
  names.o_a = "attn.wo_a";
  names.o = "attn.wo_b";
  names.sinks = "attn.attn_sink";
  names.compressor = "attn.compressor";
  names.indexer = "attn.indexer";
  names.attention_streams = "hc_attn_";
  names.feed_forward_streams = "hc_ffn_";
  names.head_streams = config.is_mtp ? "mtp.0.hc_head_" : "hc_head_";
  names.moe = "ffn";
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  names.shared_as_experts = true;
  names.correction_bias = true;
  names.correction_bias_name = "gate.bias";
  names.token_experts = "gate.tid2eid";
  return names;
}

constexpr Family kFamilies[] = {{.architecture = "DeepseekV4ForCausalLM",
                                 .model_type = "deepseek_v4",
                                 .read_config = ReadConfig,
                                 .names = Names,
                                 .mtp = true,
                                 .tool_parser = "deepseekv4",
                                 .reasoning_parser = "deepseek-v3"}};

}  // namespace

std::span<const Family> DeepseekV4Family() { return kFamilies; }

}  // namespace switchyard
