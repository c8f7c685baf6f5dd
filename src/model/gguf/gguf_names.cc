// For the names, see gguf-py/gguf/constants.py and tensor_mapping.py of
// https://github.com/ggml-org/llama.cpp.
#include "model/gguf/gguf_names.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "core/format.h"

namespace switchyard {
namespace {

struct Mapped {
  std::string_view name, gguf;
};

constexpr Mapped kModel[] = {{"model.embed_tokens.weight", "token_embd.weight"},
                             {"model.norm.weight", "output_norm.weight"},
                             {"lm_head.weight", "output.weight"}};

// Modules of a layer; ".weight" or ".bias" follows.
constexpr Mapped kModules[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.router", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
};

// Whole names of a layer.
constexpr Mapped kWhole[] = {
    {"self_attn.sinks", "attn_sinks.weight"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.experts.gate_proj_bias", "ffn_gate_exps.bias"},
    {"mlp.experts.up_proj_bias", "ffn_up_exps.bias"},
    {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"},
};

// Matrices of an expert, also with Mixtral's names.
constexpr Mapped kExpertParts[] = {
    {"gate_proj", "gate"}, {"up_proj", "up"}, {"down_proj", "down"},
    {"w1", "gate"},        {"w3", "up"},      {"w2", "down"},
};

template <size_t N>
std::string_view Find(const Mapped (&table)[N], std::string_view name) {
  const auto found = std::ranges::find(table, name, &Mapped::name);
  return found == std::end(table) ? std::string_view() : found->gguf;
}

// Removes a prefix "3." from the text and returns its number.
std::optional<int64_t> TakeNumber(std::string_view* text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end == text->data() + text->size() || *end != '.')
    return std::nullopt;
  text->remove_prefix(static_cast<size_t>(end - text->data()) + 1);
  return number;
}

bool TakePrefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// `part`: "gate", "up" or "down". New files stack experts, or gate and up rows of all experts; old
// files have a tensor for each expert.
GgufPlace ExpertPlace(const GgufFiles& files, const std::string& block, std::string_view part,
                      int64_t expert) {
  GgufPlace place{.tensor = fmt::format("{}ffn_{}_exps.weight", block, part), .expert = expert};
  if (files.Find(place.tensor) != nullptr) return place;
  const std::string both = block + "ffn_gate_up_exps.weight";
  if (part != "down" && files.Find(both) != nullptr)
    return {.tensor = both, .expert = expert, .second = part == "up" ? 1 : 0, .parts = 2};
  const std::string single = fmt::format("{}ffn_{}.{}.weight", block, part, expert);
  if (files.Find(single) != nullptr) return {.tensor = single};
  return place;
}

GgufPlace LayerPlace(const GgufFiles& files, const ModelConfig& config, const std::string& block,
                     std::string_view name) {
  if (const auto whole = Find(kWhole, name); !whole.empty()) {
    std::string tensor = block + std::string(whole);
    const std::string without = block + "exp_probs_b";  // the name in some old files
    if (whole == "exp_probs_b.bias" && !files.Find(tensor) && files.Find(without)) tensor = without;
    return {.tensor = std::move(tensor)};
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view module = name.substr(0, dot), suffix = name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return {};
  std::string_view expert = module;
  if (TakePrefix(&expert, "mlp.experts.") || TakePrefix(&expert, "block_sparse_moe.experts.")) {
    const auto number = TakeNumber(&expert);
    const std::string_view part = Find(kExpertParts, expert);
    if (!number || part.empty() || suffix != ".weight") return {};
    return ExpertPlace(files, block, part, *number);
  }
  if (module == "post_attention_layernorm") {
    std::string own = block + "post_attention_norm.weight";
    if (files.Find(own)) return {.tensor = std::move(own)};
    return {.tensor = block + "ffn_norm.weight"};
  }
  const std::string_view gguf = Find(kModules, module);
  if (gguf.empty()) return {};
  GgufPlace place{.tensor = fmt::format("{}{}{}", block, gguf, suffix)};
  const std::string* architecture = files.String("general.architecture");
  const bool pairs = architecture != nullptr && *architecture == "llama";
  if (pairs && (gguf == "attn_q" || gguf == "attn_k")) {
    place.rows = GgufPlace::Rows::kPairs;
    place.pairs_of = gguf == "attn_q" ? config.attention.heads : config.attention.kv_heads;
  }
  if (gguf == "attn_kv_b" && files.Find(place.tensor) == nullptr) {
    place.tensor = block + "attn_k_b.weight";
    place.rows = GgufPlace::Rows::kLatent;
  }
  return place;
}

// Whether the module is a linear that may stay packed.
bool StaysPacked(std::string_view module) {
  // MLA splits kv_b_proj by heads, and multiplies its transpose.
  return module.find("_proj") != std::string_view::npos && !module.ends_with("kv_b_proj");
}

// "gate", "up", "down" or "gate_up" of a tensor of experts: "ffn_up_exps", or "ffn_up.7" of old
// files. Empty for other tensors.
std::string_view ExpertPartOf(std::string_view tensor) {
  if (!TakePrefix(&tensor, "ffn_")) return {};
  constexpr std::string_view kStack = "_exps";
  if (tensor.ends_with(kStack)) return tensor.substr(0, tensor.size() - kStack.size());
  const size_t dot = tensor.find('.');
  return dot == std::string_view::npos ? std::string_view() : tensor.substr(0, dot);
}

}  // namespace

GgufPlace PlaceInGguf(const GgufFiles& files, const ModelConfig& config, std::string_view name) {
  if (const auto whole = Find(kModel, name); !whole.empty()) return {.tensor = std::string(whole)};
  if (!TakePrefix(&name, "model.layers.")) return {};
  const auto layer = TakeNumber(&name);
  return layer ? LayerPlace(files, config, fmt::format("blk.{}.", *layer), name) : GgufPlace();
}

std::vector<std::string> ModulesOfGguf(std::string_view tensor) {
  if (tensor == "output.weight") return {"lm_head"};
  constexpr std::string_view kSuffix = ".weight";
  if (!TakePrefix(&tensor, "blk.") || !tensor.ends_with(kSuffix)) return {};
  const auto layer = TakeNumber(&tensor);
  if (!layer) return {};
  tensor.remove_suffix(kSuffix.size());
  const std::string prefix = fmt::format("model.layers.{}.", *layer);
  std::vector<std::string> modules;
  for (const Mapped& module : kModules)
    if (module.gguf == tensor && StaysPacked(module.name))
      modules.push_back(prefix + std::string(module.name));
  const std::string_view part = ExpertPartOf(tensor);
  if (part.empty()) return modules;
  for (const Mapped& matrix : kExpertParts) {
    if (matrix.gguf != part && (part != "gate_up" || matrix.gguf == "down")) continue;
    for (const char* block : {"mlp", "block_sparse_moe"})
      modules.push_back(fmt::format("{}{}.experts.{}", prefix, block, matrix.name));
  }
  return modules;
}

bool AllExpertsStoredAs(const GgufFiles& files, GgmlTypeId type) {
  bool any = false;
  for (const auto& [name, tensor] : files.tensors()) {
    if (name.find("_exps.") == std::string_view::npos || !name.ends_with(".weight")) continue;
    if (tensor.type->id != type) return false;
    any = true;
  }
  return any;
}

}  // namespace switchyard
