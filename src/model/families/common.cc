#include "model/families/common.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "model/rope.h"

namespace switchyard {
namespace {

DType ReadDType(const ConfigReader& reader) {
  const std::string name = reader.StringOr({"dtype", "torch_dtype"}, "bfloat16");
  const auto dtype = ParseDType(name);
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    throw Invalid("{} is \"{}\"; want float32, bfloat16 or float16",
                  reader.Where(reader.Has("dtype") ? "dtype" : "torch_dtype"), name);
  }
  return *dtype;
}

}  // namespace

void ReadCommon(const ConfigReader& reader, double default_norm_eps, ModelConfig* config,
                std::string_view layers) {
  config->vocab_size = reader.Int({"vocab_size"}, 1, kMaxVocab);
  config->hidden = reader.Int({"hidden_size"}, 1, kMaxWidth);
  config->max_position =
      reader.Int({"max_position_embeddings", "model_max_length"}, 1, kMaxPosition);
  config->norm_eps =
      static_cast<float>(reader.DoubleOr({"rms_norm_eps"}, default_norm_eps, 0.0, 1.0));
  config->tie_embeddings = reader.BoolOr("tie_word_embeddings", false);
  config->dtype = ReadDType(reader);
  if (!layers.empty()) config->layers.assign(reader.Int({layers}, 1, kMaxCount), LayerConfig{});
  const std::string act = reader.StringOr({"hidden_act"}, "silu");
  if (act != "silu" && act != "swish") {
    throw Invalid("{} is \"{}\"; only silu is supported", reader.Where("hidden_act"), act);
  }
}

void ReadDenseIntermediate(const ConfigReader& reader, ModelConfig* config) {
  config->intermediate = reader.Int({"intermediate_size"}, 1, kMaxWidth);
}

void ReadGroupedAttention(const ConfigReader& reader, int64_t default_head_dim,
                          ModelConfig* config) {
  AttentionConfig& a = config->attention;
  a.kind = AttentionConfig::Kind::kGrouped;
  a.heads = reader.Int({"num_attention_heads"}, 1, kMaxCount);
  a.kv_heads = reader.IntOr({"num_key_value_heads"}, a.heads, 1, kMaxCount);
  if (a.heads % a.kv_heads != 0) {
    throw Invalid("{} is {}, not a multiple of num_key_value_heads {}",
                  reader.Where("num_attention_heads"), a.heads, a.kv_heads);
  }
  if (!reader.Has("head_dim") && default_head_dim == 0 && config->hidden % a.heads != 0) {
    throw Invalid("{} is {}, not a multiple of num_attention_heads {}, and there is no head_dim",
                  reader.Where("hidden_size"), config->hidden, a.heads);
  }
  const int64_t fallback = default_head_dim != 0 ? default_head_dim : config->hidden / a.heads;
  a.head_dim = reader.IntOr({"head_dim"}, fallback, 1, kMaxWidth);
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
}

void ReadLatentAttention(const ConfigReader& reader, ModelConfig* config) {
  AttentionConfig& a = config->attention;
  a.kind = AttentionConfig::Kind::kLatent;
  a.heads = reader.Int({"num_attention_heads"}, 1, kMaxCount);
  a.q_lora_rank = reader.IntOr({"q_lora_rank"}, 0, 0, kMaxWidth);
  a.kv_lora_rank = reader.Int({"kv_lora_rank"}, 1, kMaxWidth);
  a.qk_nope_head_dim = reader.Int({"qk_nope_head_dim"}, 1, kMaxWidth);
  a.qk_rope_head_dim = reader.Int({"qk_rope_head_dim"}, 1, kMaxWidth);
  a.v_head_dim = reader.Int({"v_head_dim"}, 1, kMaxWidth);
  a.head_dim = a.qk_nope_head_dim + a.qk_rope_head_dim;
  a.qkv_bias = a.output_bias = reader.BoolOr("attention_bias", false);
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
}

void ScaleLatentScores(ModelConfig* config) {
  const RopeConfig& rope = config->rope;
  if (rope.type != RopeConfig::Type::kYarn || rope.mscale_all_dim == 0.0) return;
  const double m = YarnMscale(rope, rope.mscale_all_dim);
  config->attention.scale *= static_cast<float>(m * m);
}

void CheckTopK(const ConfigReader& reader, std::string_view key, const RouterConfig& router) {
  if (router.top_k > router.num_experts)
    throw Invalid("{} is {}, more than the {} experts", reader.Where(key), router.top_k,
                  router.num_experts);
}

MoeModelConfig ReadMoe(const ConfigReader& reader, ConfigReader::Keys intermediate_keys) {
  MoeModelConfig moe;
  const ConfigReader::Keys experts = {"num_experts", "num_local_experts", "n_routed_experts",
                                      "moe_num_experts"};
  moe.router.num_experts = static_cast<int>(reader.Int(experts, 1, kMaxCount));
  moe.router.top_k = static_cast<int>(
      reader.Int({"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k"}, 1,
                 kMaxCount));
  CheckTopK(reader, "num_experts_per_tok", moe.router);
  moe.intermediate = reader.Int(intermediate_keys, 1, kMaxWidth);
  return moe;
}

void ReadGroups(const ConfigReader& reader, int64_t default_groups, int64_t default_topk_groups,
                RouterConfig* router) {
  router->num_groups =
      static_cast<int>(reader.IntOr({"n_group", "num_expert_group"}, default_groups, 1, kMaxCount));
  router->topk_groups =
      static_cast<int>(reader.IntOr({"topk_group"}, default_topk_groups, 1, kMaxCount));
  if (router->num_experts % router->num_groups != 0) {
    throw Invalid("{} is {}, not a divisor of the number of experts {}", reader.Where("n_group"),
                  router->num_groups, router->num_experts);
  }
  if (router->topk_groups > router->num_groups) {
    throw Invalid("{} is {}, more than n_group {}", reader.Where("topk_group"), router->topk_groups,
                  router->num_groups);
  }
  const int per_group = router->num_experts / router->num_groups;
  if (router->top_k > router->topk_groups * per_group) {
    throw Invalid("{} is {}, but the groups selected by topk_group {} have only {} experts",
                  reader.Where("num_experts_per_tok"), router->top_k, router->topk_groups,
                  router->topk_groups * per_group);
  }
  if (router->group_score == RouterConfig::GroupScore::kTop2Sum && per_group < 2) {
    throw Invalid("{} is {}: groups are ranked by their two best experts, but each has only one",
                  reader.Where("n_group"), router->num_groups);
  }
}

void MarkMoeLayersAfter(const ConfigReader& reader, int64_t default_dense, ModelConfig* config) {
  const int64_t dense = reader.IntOr({"first_k_dense_replace"}, default_dense, 0, kMaxCount);
  const int64_t every = reader.IntOr({"moe_layer_freq"}, 1, 1, kMaxCount);
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    config->layers[i].moe = i >= dense && i % every == 0;
  }
}

void MarkAllMoe(ModelConfig* config) {
  for (LayerConfig& layer : config->layers) layer.moe = true;
}

void MarkSparseLayers(const ConfigReader& reader, ModelConfig* config) {
  const int64_t step = reader.IntOr({"decoder_sparse_step"}, 1, 1, kMaxCount);
  const auto dense = reader.Ints("mlp_only_layers", 0, config->num_layers() - 1);
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    config->layers[i].moe = (i + 1) % step == 0 && !std::ranges::count(dense, i);
  }
}

void ReadNoAuxRouter(const ConfigReader& reader, const NoAuxDefaults& defaults,
                     RouterConfig* router) {
  router->scoring = RouterConfig::Scoring::kSigmoid;
  RequireOneOf(reader, "scoring_func", {"sigmoid", "noaux_tc"});
  RequireOneOf(reader, "topk_method", {"noaux_tc"});
  router->group_score = RouterConfig::GroupScore::kTop2Sum;
  router->renormalize = reader.BoolOr("norm_topk_prob", defaults.renormalizes);
  router->routed_scaling_factor =
      static_cast<float>(reader.DoubleOr({"routed_scaling_factor"}, defaults.scale, 0.0, 1e6));
  ReadGroups(reader, defaults.groups, defaults.topk_groups, router);
}

void ReadSharedExperts(const ConfigReader& reader, ConfigReader::Keys keys, int64_t fallback,
                       ModelConfig* config) {
  config->moe->shared_intermediate =
      reader.IntOr(keys, fallback, 0, kMaxCount) * config->moe->intermediate;
}

bool ReadMlpLayerTypes(const ConfigReader& reader, ModelConfig* config) {
  const auto types = reader.Strings("mlp_layer_types");
  if (types.empty()) return false;
  reader.Ignore({"first_k_dense_replace", "moe_layer_freq"});
  if (std::ssize(types) != config->num_layers())
    throw Invalid("{} has {} entries; want one for each of the {} layers",
                  reader.Where("mlp_layer_types"), types.size(), config->num_layers());
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    if (types[i] != "dense" && types[i] != "sparse")
      throw Invalid("{} holds \"{}\"; want dense or sparse", reader.Where("mlp_layer_types"),
                    types[i]);
    config->layers[i].moe = types[i] == "sparse";
  }
  return true;
}

bool ReadLinearLayerTypes(const ConfigReader& reader, ModelConfig* config) {
  constexpr std::string_view kKey = "layer_types";
  const auto types = reader.Strings(kKey);
  if (types.empty()) return false;
  if (std::ssize(types) != config->num_layers())
    throw Invalid("{} has {} entries; want one for each of the {} layers", reader.Where(kKey),
                  types.size(), config->num_layers());
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    if (types[i] != "linear_attention" && types[i] != "full_attention")
      throw Invalid("{} holds \"{}\"; want linear_attention or full_attention", reader.Where(kKey),
                    types[i]);
    config->layers[i].linear = types[i] == "linear_attention";
  }
  return true;
}

void RequireFullLayer(const ConfigReader& reader, const ModelConfig& config) {
  if (std::ranges::all_of(config.layers, &LayerConfig::linear))
    throw Invalid("{}: want at least one layer with full_attention", reader.Where("layer_types"));
}

bool ReadLayerTypes(const ConfigReader& reader, int64_t window, ModelConfig* config) {
  const auto types = reader.Strings("layer_types");
  if (types.empty()) return false;
  reader.Ignore({"sliding_window"});
  if (static_cast<int64_t>(types.size()) != config->num_layers()) {
    throw Invalid("{} has {} entries; want one for each of the {} layers",
                  reader.Where("layer_types"), types.size(), config->num_layers());
  }
  for (int64_t i = 0; i < config->num_layers(); ++i) {
    if (types[i] == "sliding_attention") {
      if (window < 1) {
        throw Invalid("{} has sliding_attention layers but there is no sliding_window",
                      reader.Where("layer_types"));
      }
      config->layers[i].window = static_cast<int32_t>(window);
    } else if (types[i] != "full_attention") {
      throw Invalid("{} holds \"{}\"; want full_attention or sliding_attention",
                    reader.Where("layer_types"), types[i]);
    }
  }
  return true;
}

void SetWindows(const ConfigReader& reader, ModelConfig* config) {
  const auto window = reader.IntOr({"sliding_window"}, 0, 0, INT32_MAX);
  for (LayerConfig& layer : config->layers) layer.window = static_cast<int32_t>(window);
}

void RotateWindowsOnly(ModelConfig* config) {
  for (LayerConfig& layer : config->layers) layer.rope = layer.window > 0;
}

TensorNames DefaultNames(const ModelConfig&) { return {}; }

TensorNames NamesWithCorrectionBias(const ModelConfig&) {
  TensorNames names;
  names.correction_bias = true;
  return names;
}

TensorNames MixtralNames(const ModelConfig&) {
  TensorNames names;
  names.moe = "block_sparse_moe";
  names.moe_alternative = "mlp";  // transformers 5's own modules, with fused experts
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  return names;
}

void RequireString(const ConfigReader& reader, std::string_view key, std::string_view wanted) {
  const std::string found = reader.StringOr({key}, wanted);
  if (found != wanted) {
    throw Invalid("{} is \"{}\"; only {} is supported for this architecture", reader.Where(key),
                  found, wanted);
  }
}

void RequireOneOf(const ConfigReader& reader, std::string_view key, ConfigReader::Keys wanted) {
  if (!reader.Has(key)) return;
  const std::string found = reader.StringOr({key}, "");
  if (!std::ranges::count(wanted, found))
    throw Invalid("{} is \"{}\"; only {} is supported for this architecture", reader.Where(key),
                  found, Joined(wanted, " or "));
}

void RequireTrue(const ConfigReader& reader, std::string_view key) {
  if (!reader.BoolOr(key, true))
    throw Invalid("{} is false; only true is supported", reader.Where(key));
}

void RequireFalse(const ConfigReader& reader, std::string_view key) {
  if (reader.BoolOr(key, false))
    throw Invalid("{} is true; only false is supported", reader.Where(key));
}

}  // namespace switchyard
