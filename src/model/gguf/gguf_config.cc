// For the meaning of the keys, see gguf-py/gguf/constants.py and conversion/ of
// https://github.com/ggml-org/llama.cpp.
#include "model/gguf/gguf_config.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/gguf/gguf_keys.h"
#include "model/gguf/gguf_names.h"
#include "quant/ggml_blocks.h"
#include "quant/ggml_panels.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

constexpr int64_t kSoftmax = 1, kSigmoid = 2;  // expert_gating_func

// Settings that no architecture of the table below has.
constexpr std::array<const char*, 12> kRefused = {
    "attn_logit_softcapping",   "final_logit_softcapping",
    "router_logit_softcapping", "logit_scale",
    "embedding_scale",          "residual_scale",
    "attention.scale",          "attention.output_scale",
    "attention.max_alibi_bias", "attention.temperature_scale",
    "rope.scaling.attn_factor", "attention.indexer.top_k"};

// The model's dtype. If all matrices except routers are float16 or float32: float16, or float32 if
// none is float16. Else bfloat16. Routers are always float32.
const char* DTypeOf(const GgufFiles& files) {
  bool half = false, full = false;
  for (const auto& [name, tensor] : files.tensors()) {
    if (tensor.shape.size() < 2 || name.find("ffn_gate_inp") != std::string::npos) continue;
    half |= tensor.type->id == kGgmlF16;
    full |= tensor.type->id == kGgmlF32;
    if (tensor.type->id != kGgmlF16 && tensor.type->id != kGgmlF32) return "bfloat16";
  }
  return half ? "float16" : full ? "float32" : "bfloat16";
}

Json LongRope(const GgufFiles& files, const GgufFiles::Tensor& factors) {
  if (factors.type->id != kGgmlF32 || factors.shape.size() != 1)
    throw Invalid("{}: tensor \"rope_freqs.weight\" is not a float32 vector", files.name());
  std::vector<float> values(static_cast<size_t>(factors.shape[0]));
  DequantizeGgml(*factors.type, factors.data, factors.shape[0], values.data());
  return {{"rope_type", "longrope"},
          {"short_factor", values},
          {"long_factor", values},
          {"attention_factor", 1.0}};
}

// DeepSeek's mscale_all_dim is stored times 0.1, as float32.
double MscaleOf(double log_multiplier) {
  return std::strtod(fmt::format("{:.6g}", 10.0 * log_multiplier).c_str(), nullptr);
}

// rope_scaling of config.json; null: none. llama.cpp stores the factors that Llama 3's scaling
// divides frequencies by, not its parameters.
Json RopeScaling(const GgufKeys& keys) {
  const std::string* type = keys.files().String(keys.Key("rope.scaling.type"));
  if (type == nullptr || *type == "none") {
    const auto* factors = keys.files().Find("rope_freqs.weight");
    return factors ? LongRope(keys.files(), *factors) : Json();
  }
  Json scaling = {{"rope_type", *type}, {"factor", keys.NumberOr("rope.scaling.factor", 1.0)}};
  if (*type == "linear") return scaling;
  if (*type != "yarn") keys.Refuse("rope.scaling.type", *type);
  scaling["original_max_position_embeddings"] =
      keys.IntOr("rope.scaling.original_context_length", keys.Int("context_length"));
  const std::pair<const char*, const char*> options[] = {
      {"rope.scaling.yarn_beta_fast", "beta_fast"},
      {"rope.scaling.yarn_beta_slow", "beta_slow"},
      {"rope.scaling.yarn_attn_factor", "attention_factor"}};
  for (const auto& [key, name] : options)
    if (keys.Has(key)) scaling[name] = keys.NumberOr(key, 0);
  if (keys.Has("rope.scaling.yarn_log_multiplier")) {
    const double mscale = MscaleOf(keys.NumberOr("rope.scaling.yarn_log_multiplier", 0));
    scaling["mscale"] = scaling["mscale_all_dim"] = mscale;
  }
  if (keys.architecture() == "gpt-oss") scaling["truncate"] = false;
  return scaling;
}

Json Common(const GgufKeys& keys, const char* architecture) {
  const GgufFiles& files = keys.files();
  for (const char* key : kRefused)
    if (const double value = keys.NumberOr(key, 0); value != 0 && value != 1)
      keys.Refuse(key, fmt::format("{}", value));
  if (!keys.BoolOr("attention.causal", true)) keys.Refuse("attention.causal", "false");
  const auto* embedding = files.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    throw Invalid("{}: tensor \"token_embd.weight\" is missing or not a matrix", files.name());
  Json config = {{"architectures", {architecture}},
                 {"vocab_size", embedding->shape[0]},
                 {"hidden_size", keys.Int("embedding_length")},
                 {"num_hidden_layers", keys.Layers()},
                 {"num_attention_heads", keys.Int("attention.head_count")},
                 {"max_position_embeddings", keys.Int("context_length")},
                 {"rope_theta", keys.NumberOr("rope.freq_base", 10000.0)},
                 {"rope_scaling", RopeScaling(keys)},
                 {"tie_word_embeddings", files.Find("output.weight") == nullptr},
                 {"attention_bias", keys.HasTensor(0, "attn_q.bias")},
                 {"torch_dtype", DTypeOf(files)}};
  const char* eps = "attention.layer_norm_rms_epsilon";
  if (!keys.Has(eps)) throw Invalid("{}: {} is missing", files.name(), keys.Key(eps));
  config["rms_norm_eps"] = keys.NumberOr(eps, 0);
  if (keys.Has("feed_forward_length"))
    config["intermediate_size"] = keys.Int("feed_forward_length");
  const int64_t window = keys.IntOr("attention.sliding_window", 0);
  const bool mixtral = keys.architecture() == "llama" && keys.IntOr("expert_count", 0) != 0;
  if (window != 0 && keys.architecture() != "gpt-oss" && !mixtral)
    keys.Refuse("attention.sliding_window", std::to_string(window));
  config["sliding_window"] = window != 0 ? Json(window) : Json();
  return config;
}

void AddGroupedAttention(const GgufKeys& keys, Json* config) {
  const int64_t heads = keys.Int("attention.head_count");
  (*config)["num_key_value_heads"] = keys.IntOr("attention.head_count_kv", heads);
  int64_t size = keys.IntOr("attention.key_length", 0);
  if (size == 0 && heads > 0) size = keys.Int("embedding_length") / heads;
  (*config)["head_dim"] = size;
  if (keys.IntOr("attention.value_length", size) != size)
    keys.Refuse("attention.value_length", "not attention.key_length");
  const int64_t rotated = keys.IntOr("rope.dimension_count", size);
  if (rotated != size && size > 0)
    (*config)["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(size);
}

void AddLatentAttention(const GgufKeys& keys, Json* config) {
  const int64_t rotated = keys.Int("rope.dimension_count");
  // In files with attn_kv_b, attention.key_length is the size of a head. In newer files it is a
  // latent size, and the keys with _mla have a head's sizes.
  const int64_t key = keys.IntOr("attention.key_length_mla", keys.IntOr("attention.key_length", 0));
  const int64_t value =
      keys.IntOr("attention.value_length_mla", keys.IntOr("attention.value_length", 0));
  (*config)["kv_lora_rank"] = keys.Int("attention.kv_lora_rank");
  if (const int64_t rank = keys.IntOr("attention.q_lora_rank", 0)) (*config)["q_lora_rank"] = rank;
  (*config)["qk_rope_head_dim"] = rotated;
  (*config)["qk_nope_head_dim"] = key - rotated;
  (*config)["v_head_dim"] = value;
}

void AddExperts(const GgufKeys& keys, bool normalizes, Json* config) {
  (*config)["num_experts"] = keys.Int("expert_count");
  (*config)["num_experts_per_tok"] = keys.Int("expert_used_count");
  (*config)["moe_intermediate_size"] =
      keys.IntOr("expert_feed_forward_length", keys.SizeOf("ffn_gate_exps.weight", 1));
  // intermediate_size is the width of dense layers, if there are any.
  if (config->value("intermediate_size", int64_t{0}) == 0)
    (*config)["intermediate_size"] = (*config)["moe_intermediate_size"];
  (*config)["norm_topk_prob"] = keys.BoolOr("expert_weights_norm", normalizes);
}

// Sets mlp_only_layers, for families that have no other key for dense layers. All other families
// refuse this key.
void AddDenseLayers(const GgufKeys& keys, Json* config) {
  Json dense = Json::array();
  for (int64_t i = 0, layers = keys.Layers(); i < layers; ++i)
    if (!keys.HasTensor(i, "ffn_gate_inp.weight")) dense.push_back(i);
  (*config)["mlp_only_layers"] = std::move(dense);
}

void AddDeepSeekRouter(const GgufKeys& keys, Json* config) {
  (*config)["first_k_dense_replace"] = keys.IntOr("leading_dense_block_count", 0);
  (*config)["n_shared_experts"] = keys.IntOr("expert_shared_count", 0);
  (*config)["routed_scaling_factor"] = keys.NumberOr("expert_weights_scale", 1.0);
  (*config)["n_group"] = std::max<int64_t>(1, keys.IntOr("expert_group_count", 1));
  (*config)["topk_group"] = std::max<int64_t>(1, keys.IntOr("expert_group_used_count", 1));
}

void RequireGating(const GgufKeys& keys, int64_t function) {
  const int64_t found = keys.IntOr("expert_gating_func", function);
  if (found != function) keys.Refuse("expert_gating_func", std::to_string(found));
}

Json Olmoe(const GgufKeys& keys) {
  Json config = Common(keys, "OlmoeForCausalLM");
  AddGroupedAttention(keys, &config);
  AddExperts(keys, false, &config);
  AddDenseLayers(keys, &config);
  config["intermediate_size"] = config["moe_intermediate_size"];
  if (keys.Has("attention.clamp_kqv")) config["clip_qkv"] = keys.NumberOr("attention.clamp_kqv", 0);
  return config;
}

Json Qwen2Moe(const GgufKeys& keys) {
  Json config = Common(keys, "Qwen2MoeForCausalLM");
  AddGroupedAttention(keys, &config);
  AddExperts(keys, false, &config);
  AddDenseLayers(keys, &config);
  config["qkv_bias"] = config["attention_bias"];
  config.erase("attention_bias");
  config["shared_expert_intermediate_size"] =
      keys.IntOr("expert_shared_feed_forward_length", keys.SizeOf("ffn_gate_shexp.weight", 0));
  return config;
}

Json Qwen3Moe(const GgufKeys& keys) {
  Json config = Common(keys, "Qwen3MoeForCausalLM");
  AddGroupedAttention(keys, &config);
  AddExperts(keys, true, &config);
  AddDenseLayers(keys, &config);
  return config;
}

Json Dense(const GgufKeys& keys, const char* architecture) {
  Json config = Common(keys, architecture);
  AddGroupedAttention(keys, &config);
  return config;
}
Json Qwen2(const GgufKeys& keys) {
  Json config = Dense(keys, "Qwen2ForCausalLM");
  config.erase("attention_bias");  // the family always has it
  return config;
}
Json Qwen3(const GgufKeys& keys) { return Dense(keys, "Qwen3ForCausalLM"); }

Json Llama(const GgufKeys& keys) {
  if (keys.IntOr("expert_count", 0) == 0) return Dense(keys, "LlamaForCausalLM");
  Json config = Dense(keys, "MixtralForCausalLM");
  AddExperts(keys, true, &config);
  AddDenseLayers(keys, &config);
  if (!config["norm_topk_prob"].get<bool>()) keys.Refuse("expert_weights_norm", "false");
  config["intermediate_size"] = config["moe_intermediate_size"];
  return config;
}

// llama.cpp has one architecture for DeepSeek-V2 and V3; files of V2 may lack the gating function.
Json DeepSeek2(const GgufKeys& keys) {
  const int64_t gating = keys.IntOr("expert_gating_func", kSoftmax);
  if (gating != kSoftmax && gating != kSigmoid)
    keys.Refuse("expert_gating_func", std::to_string(gating));
  const bool v3 = gating == kSigmoid;
  Json config = Common(keys, v3 ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM");
  AddLatentAttention(keys, &config);
  AddExperts(keys, false, &config);
  AddDeepSeekRouter(keys, &config);
  const bool groups = config["n_group"].get<int64_t>() > 1;
  config["topk_method"] = v3 ? "noaux_tc" : groups ? "group_limited_greedy" : "greedy";
  config["n_routed_experts"] = config["num_experts"];
  config["attention_bias"] = false;
  return config;
}

Json Glm4Moe(const GgufKeys& keys) {
  Json config = Common(keys, "Glm4MoeForCausalLM");
  RequireGating(keys, kSigmoid);
  AddGroupedAttention(keys, &config);
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
  AddExperts(keys, true, &config);
  AddDeepSeekRouter(keys, &config);
  config["use_qk_norm"] = keys.HasTensor(0, "attn_q_norm.weight");
  return config;
}

Json GptOss(const GgufKeys& keys) {
  Json config = Common(keys, "GptOssForCausalLM");
  AddGroupedAttention(keys, &config);
  AddExperts(keys, true, &config);
  AddDenseLayers(keys, &config);
  config["intermediate_size"] = config["moe_intermediate_size"];
  if (config["sliding_window"].is_null()) config.erase("sliding_window");
  if (AllExpertsStoredAs(keys.files(), kGgmlMXFP4))
    config["quantization_config"] = {{"quant_method", "mxfp4"}};
  return config;
}

Json Dots1(const GgufKeys& keys) {
  Json config = Common(keys, "Dots1ForCausalLM");
  RequireGating(keys, kSigmoid);
  AddGroupedAttention(keys, &config);
  AddExperts(keys, false, &config);
  AddDeepSeekRouter(keys, &config);
  return config;
}

Json Ernie45Moe(const GgufKeys& keys) {
  Json config = Common(keys, "Ernie4_5_MoeForCausalLM");
  RequireGating(keys, kSoftmax);
  AddGroupedAttention(keys, &config);
  AddExperts(keys, true, &config);
  config["moe_layer_start_index"] = keys.IntOr("leading_dense_block_count", 0);
  config["moe_layer_interval"] = std::max<int64_t>(1, keys.IntOr("interleave_moe_layer_step", 1));
  const int64_t intermediate = config["moe_intermediate_size"].get<int64_t>();
  const int64_t shared = keys.SizeOf("ffn_gate_shexp.weight", 0);
  config["moe_num_shared_experts"] = intermediate > 0 ? shared / intermediate : 0;
  config["use_bias"] = config["attention_bias"];
  config.erase("attention_bias");
  return config;
}

struct Architecture {
  const char* name;
  Json (*read)(const GgufKeys&);
};
constexpr Architecture kArchitectures[] = {
    {"deepseek2", DeepSeek2}, {"dots1", Dots1},       {"ernie4_5-moe", Ernie45Moe},
    {"glm4moe", Glm4Moe},     {"gpt-oss", GptOss},    {"llama", Llama},
    {"olmoe", Olmoe},         {"qwen2", Qwen2},       {"qwen2moe", Qwen2Moe},
    {"qwen3", Qwen3},         {"qwen3moe", Qwen3Moe},
};

Json ReadArchitecture(const GgufKeys& keys) {
  const auto found =
      std::ranges::find(kArchitectures, keys.architecture(),
                        [](const Architecture& a) { return std::string_view(a.name); });
  if (found != std::end(kArchitectures)) return found->read(keys);
  std::vector<std::string> known;
  for (const Architecture& a : kArchitectures) known.emplace_back(a.name);
  throw Invalid("{}: general.architecture is \"{}\"; want {}", keys.files().name(),
                keys.architecture(), Joined(known, ", "));
}

void CheckTypes(const GgufFiles& files) {
  for (const auto& [name, tensor] : files.tensors()) {
    if (!ReadsGgml(*tensor.type))
      throw Invalid("{}: tensor \"{}\" is {}; want {}", tensor.file->name, name, tensor.type->name,
                    ReadableGgmlTypes());
  }
}

}  // namespace

GgufConfig ReadGgufConfig(const GgufFiles& files) {
  const std::string* type = files.String("general.type");
  if (type != nullptr && *type != "model")
    throw Invalid("{}: general.type is \"{}\"; want a model", files.name(), *type);
  Json config = ReadArchitecture(GgufKeys(files));
  CheckTypes(files);
  return {config.dump(), GgufGeneration(files)};
}

namespace {

using TypeOfModule = std::map<std::string, const GgmlType*, std::less<>>;

// The type of each linear; null: the tensors of the linear have different types.
TypeOfModule TypesOfModules(const GgufFiles& files) {
  TypeOfModule types;
  for (const auto& [name, tensor] : files.tensors()) {
    for (std::string& module : ModulesOfGguf(name)) {
      const auto [found, added] = types.emplace(std::move(module), tensor.type);
      if (!added && found->second != tensor.type) found->second = nullptr;
    }
  }
  return types;
}

// Gate and up share their rounded input rows, so they stay packed only if both have the same type.
// For experts, also adds an entry for the stack of both.
void CheckPairs(TypeOfModule* types) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {{"gate_proj", "up_proj"},
                                                                      {"w1", "w3"}};
  TypeOfModule stacks;
  for (auto& [module, type] : *types) {
    for (const auto& [gate, up] : kPairs) {
      if (!module.ends_with("." + std::string(gate))) continue;
      const std::string block = module.substr(0, module.size() - gate.size());
      const auto other = types->find(block + std::string(up));
      if (other == types->end() || other->second != type) {
        type = nullptr;
        if (other != types->end()) other->second = nullptr;
      }
      if (block.ends_with(".experts.")) stacks.emplace(block + "gate_up_proj", type);
    }
  }
  types->merge(stacks);
}

// The scheme of linears that stay packed.
std::optional<LinearScheme> SchemeOf(const GgmlType& type) {
  LinearScheme scheme{.packing = Packing::kGguf};
  switch (type.id) {
    case kGgmlQ4_0:
      scheme.format = WeightFormat::kInt4Group;
      scheme.group_size = type.block_size;
      return scheme;
    case kGgmlMXFP4:
      scheme.format = WeightFormat::kMxfp4;
      return scheme;
    default:
      scheme.format = PanelFormatOfGgml(type);
      if (!HasPanels(scheme.format)) return std::nullopt;
      return scheme;
  }
}

}  // namespace

void SetGgufQuantization(const GgufFiles& files, QuantizationConfig* config) {
  TypeOfModule types = TypesOfModules(files);
  CheckPairs(&types);
  for (const auto& [module, type] : types)
    if (const auto scheme = type ? SchemeOf(*type) : std::nullopt)
      config->stored.emplace(module, *scheme);
  const bool blocks = std::ranges::any_of(
      files.tensors(), [](const auto& tensor) { return tensor.second.type->block_size > 1; });
  if (config->method.empty() && blocks) config->method = "gguf";
}

}  // namespace switchyard
