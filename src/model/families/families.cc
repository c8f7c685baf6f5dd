#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

std::vector<Family> Collect() {
  std::vector<Family> all;
  for (std::span<const Family> page :
       {MixtralFamily(),      Qwen2MoeFamily(),      Qwen3MoeFamily(),     OlmoeFamily(),
        DeepseekV2Family(),   DeepseekV3Family(),    GptOssFamily(),       Glm4MoeFamily(),
        LlamaFamily(),        QwenFamily(),          Dots1Family(),        MiniMaxM2Family(),
        Ernie45MoeFamily(),   GraniteMoeFamily(),    HunyuanV1MoeFamily(), ExaoneMoeFamily(),
        FlexOlmoFamily(),     PhimoeFamily(),        Mistral4Family(),     AfmoeFamily(),
        BailingMoeV2Family(), Llama4Family(),        LongcatFlashFamily(), MiMoV2FlashFamily(),
        DeepseekV32Family(),  Qwen3NextFamily(),     KimiLinearFamily(),   NemotronHFamily(),
        DeepseekV4Family(),   BailingHybridFamily(), BailingMoeV25Family()}) {
    all.insert(all.end(), page.begin(), page.end());
  }
  return all;
}

constexpr Wrapper kWrappers[] = {
    {"KimiK25ForConditionalGeneration", "kimi_k25", "language_model."},
    {"Kimi_K25ForConditionalGeneration", "kimi_k25", "language_model."},
    {"Llama4ForConditionalGeneration", "llama4", "language_model."},
    {"Mistral3ForConditionalGeneration", "mistral3", "language_model."},
    {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "model.language_model."},
};

// A prefix that begins with "model." replaces it, and other names have none: the head.
std::string WithPrefix(const std::string& prefix, const std::string& name) {
  constexpr std::string_view kModel = "model.";
  if (!prefix.starts_with(kModel)) return prefix + name;
  return name.starts_with(kModel) ? prefix + name.substr(kModel.size()) : name;
}

}  // namespace

std::string LayerPrefix(const TensorNames& names, int64_t layer) {
  return fmt::format("{}{}.", names.layers, layer / names.blocks);
}

TensorNames NamesOfLayer(const TensorNames& names, int64_t layer) {
  TensorNames own = names;
  if (names.blocks == 1) return own;
  const std::string block = std::to_string(layer % names.blocks);
  for (std::string* name : {&own.input_norm, &own.post_attention_norm, &own.q_a, &own.q_a_norm,
                            &own.q_b, &own.kv_a, &own.kv_a_norm, &own.kv_b, &own.o, &own.mlp}) {
    const size_t at = name->find('#');
    CHECK(at != std::string::npos);
    name->replace(at, 1, block);
  }
  return own;
}

std::string MtpName(const TensorNames& names, const std::string& part, int64_t depth) {
  std::string name = names.mtp + part;
  if (const size_t at = name.find('#'); at != std::string::npos)
    name.replace(at, 1, std::to_string(depth));
  return name;
}

std::span<const Wrapper> Wrappers() { return kWrappers; }

std::span<const Family> Families() {
  static const std::vector<Family> families = Collect();
  return families;
}

const Family* FindFamily(std::string_view architecture) {
  const auto families = Families();
  // Converts the name of a classifier, or of a decoder without a head, to that of the family's
  // decoder. Qwen3ForSequenceClassification and Qwen3Model become Qwen3ForCausalLM.
  std::string causal(architecture);
  for (const std::string_view other : {"ForSequenceClassification", "Model"})
    if (architecture.ends_with(other))
      causal.replace(causal.size() - other.size(), other.size(), "ForCausalLM");
  const auto it = std::ranges::find(families, causal, &Family::architecture);
  return it == families.end() ? nullptr : &*it;
}

TensorNames NamesOf(const ModelConfig& config) {
  const Family* family = FindFamily(config.architecture);
  CHECK(family != nullptr);
  TensorNames names = family->names(config);
  for (std::string* name : {&names.embedding, &names.final_norm, &names.head, &names.layers})
    *name = WithPrefix(config.tensor_prefix, *name);
  if (config.is_mtp && !names.mtp.empty()) names.layers = names.mtp + names.mtp_layers;
  return names;
}

}  // namespace switchyard
