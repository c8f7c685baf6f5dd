#include "train/layers/lora.h"

#include <algorithm>

#include "model/families/family.h"
#include "train/math/product.h"

namespace switchyard::train {
namespace {

std::string_view LastPart(std::string_view name) { return name.substr(name.rfind('.') + 1); }

}  // namespace

bool LoraOptions::Adapts(std::string_view name) const {
  return rank > 0 && std::ranges::find(targets, LastPart(name)) != targets.end();
}

std::vector<std::string> LoraTargets(const ModelConfig& config) {
  const TensorNames names = NamesOf(config);
  std::vector<std::string> targets;
  const auto add = [&](std::string_view name) {
    const std::string last(LastPart(name));
    if (std::ranges::find(targets, last) == targets.end()) targets.push_back(last);
  };
  if (config.attention.kind == AttentionConfig::Kind::kGrouped) {
    for (const std::string& name : {names.q, names.k, names.v, names.o}) add(name);
  } else {
    if (config.attention.q_lora_rank == 0) add(names.q);
    if (config.attention.q_lora_rank > 0) add(names.q_a), add(names.q_b);
    for (const std::string& name : {names.kv_a, names.kv_b, names.o}) add(name);
  }
  if (config.moe) {
    for (const std::string& name : {names.expert_gate, names.expert_up, names.expert_down})
      add(name);
  }
  const bool dense =
      std::ranges::any_of(config.layers, [](const LayerConfig& l) { return !l.moe; });
  if (dense || (config.moe && config.moe->shared_intermediate > 0))
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) add(name);
  return targets;
}

bool IsAdapter(std::string_view tensor) {
  return tensor.ends_with(".lora_A.weight") || tensor.ends_with(".lora_B.weight");
}

template <typename T>
std::vector<T> MergedValue(const Parameter<T>& weight) {
  std::vector<T> merged = weight.value;
  const auto& [a, b, scale] = weight.adapter;
  if (a == nullptr) return merged;
  const int64_t rank = a->shape[0], n = weight.shape[0], k = weight.shape[1];
  std::vector<T> scaled = b->value;
  for (T& v : scaled) v *= scale;
  MultiplySerial<T>({.a = scaled.data(),
                     .a_row = rank,
                     .b = a->value.data(),
                     .b_row = k,
                     .c = merged.data(),
                     .ldc = k,
                     .m = n,
                     .n = k,
                     .k = rank,
                     .accumulate = true});
  return merged;
}

template std::vector<float> MergedValue(const Parameter<float>&);
template std::vector<double> MergedValue(const Parameter<double>&);

}  // namespace switchyard::train
